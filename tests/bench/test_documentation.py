"""What the pages say is what was measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kineto_step_tracker.bench import Key, Question, Report, verdicts

ROOT = Path(__file__).parents[2]
REPORTS = ("gil.json", "free-threaded.json")


@pytest.fixture
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("table", ROOT / "benchmarks" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_has_the_tables_of_the_reports_beside_it(table: ModuleType, name: str) -> None:
    report = Report.from_json((ROOT / "docs" / "benchmarks" / name).read_text())
    page = (ROOT / "docs" / "how-fast.md").read_text()
    assert "\n".join(table.tables(report)) in page


@pytest.mark.parametrize("name", REPORTS)
def test_the_reports_are_of_the_targets_of_today(name: str) -> None:
    report = Report.from_json((ROOT / "docs" / "benchmarks" / name).read_text())
    assert not report.quick
    assert report.backend == "native"
    missing = [verdict.target.text for verdict in verdicts(report) if verdict.measured is None]
    # PyTorch has no build for that Python.
    assert all("hook" in text for text in missing)
    assert not missing or report.free_threaded


@pytest.mark.parametrize(
    ("page", "name", "question", "columns", "rows"),
    [
        (
            "compare.md",
            "gil.json",
            Question.SHARED,
            4,
            {"by name": "with the GIL: this library, by name", "locked": "behind a lock"},
        ),
        (
            "compare.md",
            "free-threaded.json",
            Question.SHARED,
            4,
            {"by name": "without the GIL: this library, by name", "locked": "behind a lock"},
        ),
        (
            "understand/free-threaded-scaling.md",
            "free-threaded.json",
            Question.BEHIND,
            2,
            {
                "by handle": "by handle",
                "drop-in class": "drop-in class",
                "by name": "by name",
                "textbook": "PyTorch's algorithm, wrong",
                "locked": "the same behind a lock",
                "empty method": "an empty built-in method, for scale",
            },
        ),
        (
            "understand/free-threaded-scaling.md",
            "free-threaded.json",
            Question.SHARED,
            3,
            {
                "by handle": "by handle",
                "by name": "by name",
                "drop-in class": "drop-in class",
                "textbook": "PyTorch's algorithm, wrong",
                "locked": "the same behind a lock",
            },
        ),
    ],
)
def test_the_steps_of_threads_are_those_of_the_reports(
    page: str, name: str, question: Question, columns: int, rows: dict[str, str]
) -> None:
    report = Report.from_json((ROOT / "docs" / "benchmarks" / name).read_text())
    text = (ROOT / "docs" / page).read_text()
    for contender, title in rows.items():
        threads = report.xs(question, contender)[:columns]
        found = [report.spread(Key(question, contender, number)).median for number in threads]
        assert " | ".join([f"| {title}", *map(_millions, found)]) + " |" in text


def _millions(steps: float) -> str:
    """Two digits."""
    millions = steps / 1e6
    return f"{millions:.{0 if millions >= 9.95 else 1 if millions >= 0.995 else 2}f}"
