"""What the page on many ranks says that they cost is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "many-ranks-cost.md").read_text()
FOUND: dict[str, Any] = json.loads((DOCS / "benchmarks" / "fleet.json").read_text())
INCREMENTS: dict[str, Any] = json.loads((DOCS / "benchmarks" / "fleet_increment.json").read_text())


def test_what_a_store_is_busy_with() -> None:
    for ranks in {row["ranks"]: None for row in FOUND["predicted"]}:
        rows = [row for row in FOUND["predicted"] if row["ranks"] == ranks]
        cells = [_share(row["no rise"]) for row in rows]
        cells += [_share(row["all look at all"]) for row in rows if row["every"] == 1]
        assert f"| {_grouped(ranks)} | {' | '.join(cells)} |" in PAGE


def test_what_was_simulated() -> None:
    for row in FOUND["simulated"]:
        assert row["called once"]
        cells = (
            f"{_grouped(row['ranks'])}, each {row['every']:g} s",
            row["each"],
            f"{row['core']:.1%}",
            f"{row['predicted']:.1%}",
        )
        assert f"| {' | '.join(cells)} |" in PAGE


def test_what_an_increment_costs() -> None:
    for row in INCREMENTS["rows"]:
        if row["which"] != "alone":
            ratio = "{median:.2f} ({low:.2f} to {high:.2f})".format(**row["ratio"])
            assert f"| {row['what']}, {row['which']} | {ratio} |" in PAGE


def _share(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 1 else "too much"


def _grouped(ranks: int) -> str:
    return f"{ranks:,}".replace(",", " ")
