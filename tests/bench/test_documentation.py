"""What docs/how-fast.md says is what was measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kineto_step_tracker.bench import Report, verdicts

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
