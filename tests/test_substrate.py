"""The substrate that ships, whichever was built: what its map promises, step by step.

The algorithm's own tests run on it too, but a race that shows a wrong map is too rare for them.
"""

from __future__ import annotations

from kineto_step_tracker._atomic import AtomicInt64, CellMap


def test_a_name_keeps_its_first_cell() -> None:
    cells, first, second = CellMap(), AtomicInt64(1), AtomicInt64(2)
    assert cells.find_or_add("a", first) is first
    assert cells.find_or_add("a", second) is first
    assert cells.snapshot() == {"a": first}


def test_a_cell_that_the_name_no_longer_has_is_not_discarded() -> None:
    """Or whoever erased the requester, and was slow, would remove its next registration."""
    cells, retired, current = CellMap(), AtomicInt64(1), AtomicInt64(2)
    cells.find_or_add("a", retired)
    cells.discard("a", retired)
    cells.find_or_add("a", current)
    cells.discard("a", retired)
    assert cells.snapshot() == {"a": current}
    cells.discard("a", current)
    cells.discard("a", current)
    assert cells.snapshot() == {}


def test_a_snapshot_is_a_copy() -> None:
    cells, cell = CellMap(), AtomicInt64(1)
    cells.find_or_add("a", cell)
    before = cells.snapshot()
    cells.discard("a", cell)
    assert before == {"a": cell}
