"""What `make check` leaves to `make test`: files that start servers, browsers or long searches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.figures import figure, pytest_terminal_summary

__all__ = ["figure", "pytest_terminal_summary"]

HERE = Path(__file__).parent

settings.register_profile("quick", max_examples=15, deadline=None)  # of `make check`
SLOW = (
    "conformance",
    "faults",
    "stack",
    "recorded",
    "probes/test_client",
    "probes/test_reference.py",
    "probes/test_histogram.py",
    "probes/test_sse.py",
    "monitor/notify",
    "monitor/store",
    "monitor/test_cli.py",
    "monitor/test_app.py",
    "monitor/test_config.py",
    "monitor/test_demo.py",
    "monitor/test_prober.py",
    "monitor/test_supervise.py",
    "monitor/test_web.py",
    "monitor/metrics",
)
"""Beginnings of paths below tests/. A test elsewhere that takes seconds marks itself."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of a slow file."""
    for item in items:
        if item.path.is_relative_to(HERE):
            place = item.path.relative_to(HERE).as_posix()
            if place.startswith(SLOW):
                item.add_marker(pytest.mark.slow)
