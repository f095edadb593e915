"""What a tracker means, one call after another, and whether a history of overlapping calls fits.

A history fits if every call can be given an instant between its first and its last event such
that the calls, done at their instants one after another by the specification, return what they
returned (linearizability: Herlihy and Wing, https://doi.org/10.1145/78969.78972).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple


@dataclass(slots=True)
class Specification:
    """The sequential meaning of section 2 of the design."""

    step: int
    counts: dict[str, int] = field(default_factory=dict)

    def init(self, requester: str) -> None:
        self.counts[requester] = self.step

    def register(self, requester: str) -> None:
        self.counts.setdefault(requester, self.step)

    def count_one(self, requester: str) -> int | None:
        """The new count; None for an unknown requester, which has to be registered before."""
        if requester not in self.counts:
            return None
        self.counts[requester] += 1
        self.step = max(self.step, self.counts[requester])
        return self.counts[requester]

    def erase(self, requester: str) -> bool:
        return self.counts.pop(requester, None) is not None

    def current(self, _: str) -> int:
        return self.step

    def count(self, requester: str) -> int | None:
        return self.counts.get(requester)


class Past(NamedTuple):
    """A call that has returned: its first and its last event, its operation and its result.

    What `counts` returned is here the sorted tuple of its items.
    """

    first: int
    last: int
    operation: str
    result: object


UNKNOWN = "unknown"  # the result of a call that an exception left


@dataclass(frozen=True, slots=True)
class Instant:
    """Something that takes effect at once, between two events, and what it gave."""

    first: int
    last: int
    action: str
    requester: str = ""
    result: object = UNKNOWN
    # The instant of the same call, by its number, that this one has to follow.
    after: int | None = None

    def happens(self, state: Specification) -> bool:
        """Let it take effect; False if the specification gives something else."""
        result = getattr(state, self.action)(self.requester)
        if self.action == "count_one":
            return result is not None
        return self.result in (UNKNOWN, result)


def linearizable(step: int, before: tuple[str, ...], history: Sequence[Past]) -> bool:
    """Whether a history fits a tracker that started at a step, after some operations."""
    # Only the order of calls and returns matters, and there are far fewer orders than histories.
    returns = sorted(past.last for past in history)
    ordered = tuple(
        Past(bisect_left(returns, first), bisect_left(returns, last), operation, result)
        for first, last, operation, result in history
    )
    return _linearizable(step, before, ordered)


@lru_cache(maxsize=100_000)
def _linearizable(step: int, before: tuple[str, ...], history: tuple[Past, ...]) -> bool:
    state = Specification(step)
    for operation in before:
        for instant in _instants(Past(0, 0, operation, UNKNOWN), (), 0):
            instant.happens(state)
    instants: list[Instant] = []
    for call in history:
        instants.extend(_instants(call, history, len(instants)))
    return _fits(state, instants)


def _instants(call: Past, history: Sequence[Past], number: int) -> Iterator[Instant]:
    """The instants of a call, of which the first gets this number."""
    first, last, operation, result = call
    action, _, name = operation.partition(" ")
    match action:
        case "increment" | "step":
            yield Instant(first, last, "register", name)
            yield Instant(first, last, "count_one", name, after=number)
            yield Instant(first, last, "current", result=result, after=number + 1)
        case "try" if result is not False:
            yield Instant(first, last, "count_one", name)
        case "handle":
            yield Instant(first, last, "register", name)
        case "counts" if isinstance(result, tuple):
            counts = dict(result)
            for name in counts.keys() | {past.operation.partition(" ")[2] for past in history}:
                yield Instant(_not_yet(name, call, history), last, "count", name, counts.get(name))
        case "count":
            yield Instant(_not_yet(name, call, history), last, "count", name, result)
        case "init" | "erase" | "current":
            yield Instant(first, last, action, name, result)


def _not_yet(name: str, reader: Past, history: Sequence[Past]) -> int:
    """From when on a count may be the one that is read.

    While another thread registers or initialises the requester, it may be the one from before.
    """
    return min(
        past.first
        for past in (reader, *history)
        if past is reader
        or (
            past.operation.split()[1:] == [name]
            and past.operation.split()[0] in ("increment", "step", "init", "handle")
            and past.first <= reader.last
            and past.last >= reader.first
        )
    )


def _fits(start: Specification, instants: Sequence[Instant]) -> bool:
    """Whether there is an order of the instants that the specification agrees with."""
    refuted: set[object] = set()

    def search(left: frozenset[int], state: Specification) -> bool:
        key = (left, state.step, frozenset(state.counts.items()))
        if key in refuted:
            return False
        refuted.add(key)
        deadline = min((instants[i].last for i in left), default=0)
        for i in left:
            if instants[i].first <= deadline and instants[i].after not in left:
                then = Specification(state.step, state.counts.copy())
                if instants[i].happens(then) and search(left - {i}, then):
                    return True
        return not left

    return search(frozenset(range(len(instants))), start)
