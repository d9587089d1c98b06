"""Every scenario, the public ones and our own, is measured as its author says."""

from __future__ import annotations

import pathlib

import pytest

from tests.conformance.running import HERE, disagreements


@pytest.mark.slow
def test_the_judge_agrees_on_every_scenario(tmp_path: pathlib.Path) -> None:
    assert disagreements([HERE / "scenarios", HERE / "own"], tmp_path) == ""
