"""What the page on traces says was found is what was."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_of_the_published_run() -> None:
    page = (DOCS / "traces-on-demand.md").read_text()
    rows = json.loads((DOCS / "benchmarks" / "traces.json").read_text())
    found = {(row["training"], row["tracker"]): row["found"] for row in rows}
    assert {row["asked"] for row in rows} == {10}
    for training in dict.fromkeys(row["training"] for row in rows):
        cells = [_range(found[training, tracker]) for tracker in ("ours", "pytorch")]
        assert f"| {training} | {cells[0]} | {cells[1]} |" in page


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
