"""README.md of this folder claims nothing that is not there."""

from __future__ import annotations

import pathlib
import re
from functools import cache

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
ROWS = [
    (cells[1].strip(), re.findall(r"`([^`]+)`", cells[3]))
    for line in (HERE / "README.md").read_text("utf-8").splitlines()
    if len(cells := line.split("|")) == 5 and re.match(r" B\d+ ", cells[1])
]


@cache
def names_in(path: pathlib.Path) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.M))


def has_scenario(name: str) -> bool:
    """Whether a scenario, or a variant of one (scenario/variant), is there."""
    stem, _, variant = name.partition("/")
    folders = (ROOT / "tests/conformance" / folder for folder in ("scenarios", "own"))
    found = next((f for d in folders if (f := d / f"{stem}.yaml").is_file()), None)
    if found is None:
        return False
    return not variant or f"\n  {variant}:\n" in found.read_text("utf-8")


def exists(proof: str) -> bool:
    """Whether a proof of the table is there."""
    kind, _, name = proof.partition(" ")
    if kind == "scenario":
        return has_scenario(name)
    if kind == "recording":
        return (ROOT / "tests/recorded/transcripts" / f"{name}.yaml").is_file()
    if kind == "later:":
        return re.match(r"issue \d, \w", name) is not None
    path, _, test = proof.rpartition("::")
    return test in names_in(ROOT / path if path else HERE / "test_client_cases.py")


def test_every_row_is_there_once_and_in_order() -> None:
    assert [row for row, _ in ROWS] == [f"B{number}" for number in range(1, 86, 2)]


@pytest.mark.parametrize(("row", "proofs"), ROWS, ids=[row for row, _ in ROWS])
def test_every_proof_of_a_row_exists(row: str, proofs: list[str]) -> None:
    assert proofs
    assert not [proof for proof in proofs if not exists(proof)], row


def test_every_test_of_the_cases_is_in_the_table() -> None:
    named = {proof for _, proofs in ROWS for proof in proofs}
    assert names_in(HERE / "test_client_cases.py") <= named
