"""The specification itself: histories that fit and histories that do not."""

from __future__ import annotations

import pytest

from .specification import Past, linearizable

# Of two calls, the second starts after the first has returned, or before.
AFTER = (0, 1), (2, 3)
OVERLAPPING = (0, 2), (1, 3)

Calls = tuple[tuple[str, object], tuple[str, object]]


def fits(
    before: tuple[str, ...], times: tuple[tuple[int, int], tuple[int, int]], calls: Calls
) -> bool:
    history = [Past(*time, *call) for time, call in zip(times, calls, strict=True)]
    return linearizable(5, before, history)


@pytest.mark.parametrize(
    ("before", "calls"),
    [
        ((), (("increment a", 6), ("current", 6))),
        ((), (("increment a", 6), ("increment a", 7))),
        ((), (("increment a", 6), ("increment b", 7))),
        (("handle a",), (("step a", 6), ("counts", (("a", 6),)))),
        (("handle a",), (("erase a", True), ("erase a", False))),
        (("increment b",), (("handle a", None), ("count a", 6))),
        (("handle a", "increment b"), (("init a", None), ("count a", 6))),
    ],
)
def test_what_fits_whether_or_not_the_calls_overlap(before: tuple[str, ...], calls: Calls) -> None:
    assert fits(before, AFTER, calls)
    assert fits(before, OVERLAPPING, calls)


@pytest.mark.parametrize(
    ("before", "calls"),
    [
        ((), (("increment a", 6), ("current", 5))),
        ((), (("increment a", 7), ("increment a", 7))),
        # Registering and counting are two instants.
        ((), (("increment a", 6), ("increment b", 6))),
        # A requester that is being registered or initialised may be read as it was before.
        ((), (("increment a", 6), ("counts", ()))),
        (("handle a", "increment b"), (("init a", None), ("count a", 5))),
        (("handle a",), (("erase a", True), ("count a", 5))),
        # The increment counts between the two, and returns after both.
        (("handle a",), (("step a", 7), ("increment b", 7))),
    ],
)
def test_what_fits_only_if_the_calls_overlap(before: tuple[str, ...], calls: Calls) -> None:
    assert not fits(before, AFTER, calls)
    assert fits(before, OVERLAPPING, calls)


@pytest.mark.parametrize(
    ("before", "calls"),
    [
        (("handle a",), (("step a", 5), ("current", 6))),
        (("handle a",), (("step a", 6), ("step a", 6))),
        (("handle a",), (("erase a", True), ("erase a", True))),
        (("handle a", "erase a"), (("erase a", True), ("current", 5))),
        (("handle a", "increment b"), (("init a", None), ("count a", 7))),
    ],
)
def test_what_never_fits(before: tuple[str, ...], calls: Calls) -> None:
    assert not fits(before, AFTER, calls)
    assert not fits(before, OVERLAPPING, calls)
