from __future__ import annotations

import probes


def test_the_public_names_are_these() -> None:
    """What others may rely on; a new name is a decision."""
    assert probes.__all__ == [
        "KINDS",
        "Connections",
        "Endpoint",
        "Limits",
        "LoopLag",
        "Outcome",
        "ProbeResult",
        "Workload",
        "run",
    ]
    assert all(hasattr(probes, name) for name in probes.__all__)


def test_every_kind_is_known_by_its_own_name() -> None:
    assert {name: kind.name for name, kind in probes.KINDS.items()} == {k: k for k in probes.KINDS}
