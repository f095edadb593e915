"""How much was explored, for the end of pytest's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

import pytest

from .programs import examine

COUNTED = ("programs", "schedules", "programs cut")


@pytest.fixture
def passes(record_property: Callable[[str, object], None]) -> Callable[[Iterable[str], int], None]:
    """Explore programs up to a number of schedules each, count, and fail with the first failure."""

    def passes(programs: Iterable[str], limit: int) -> None:
        counted = Counter[str]()
        for program in programs:
            outcome = examine(program, limit=limit)
            counted.update(dict(zip(COUNTED, (1, outcome.schedules, outcome.cut), strict=True)))
            if outcome.failure:
                pytest.fail(outcome.failure, pytrace=False)
        for what, number in counted.items():
            record_property(what, number)

    return passes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counted = Counter[str]()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        for what, number in getattr(report, "user_properties", ()):
            if what in COUNTED and report.when == "call":
                counted[what] += number
    if counted:
        figures = ", ".join(f"{counted[what]:,} {what}" for what in COUNTED)
        terminalreporter.write_sep("-", f"interleavings: {figures}")
