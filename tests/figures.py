"""Figures that a test measures and does not assert are printed at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Figure = Callable[[str], None]
"""Takes a line to be printed after the run."""


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Say a figure; it is printed by whoever prints the summary, from all workers."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print all figures."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(f"FIGURE {value}")
