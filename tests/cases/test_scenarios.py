"""The scenarios that the table names are not only there: our own client gets each right."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from tests.cases.test_table import NAMED_SCENARIOS, scenario_file
from tests.conformance.running import disagreements

TOLERANCE = 100  # ms; what of this is our own error, calibrate and benchmarks measure


def test_the_named_scenarios_agree_with_their_judge(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "scenarios"
    folder.mkdir()
    for name in NAMED_SCENARIOS:
        found = scenario_file(name)
        assert found is not None, name
        shutil.copy(found, folder)
    assert disagreements([folder], tmp_path, tolerance_ms=TOLERANCE) == ""
