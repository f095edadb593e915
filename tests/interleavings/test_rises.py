"""The shipped ``fleet/rises.py`` under every interleaving of a few ranks, with a store that fails.

No PyTorch takes part: the store is a dict whose every operation is an event of the explorer. Of a
faulty one the answer is lost, or the request is, or it arrives at any later moment, when the rank
has long gone on; or the rank dies of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from pathlib import Path
from types import ModuleType

import pytest

from .explorer import bit, explore, scheduler

SOURCE = (
    Path(__file__).parents[2] / "src" / "kineto_step_tracker" / "fleet" / "rises.py"
).read_text()

# The steps that each rank goes to, one after the other.
Ranks = tuple[tuple[int, ...], ...]
RANKS: dict[str, Ranks] = {
    "one each": ((1,), (1,)),
    "one twice": ((1, 2), (2,)),
    "overtaking": ((1, 4), (2, 3)),
    "three": ((1,), (2,), (3,)),
}
LONGER: Ranks = ((2,), (1, 4), (3,))
FAULTS = ("answer lost", "request lost", "late", "dies before", "dies after")


class StoreError(Exception):
    """The answer of the store has not come."""


class DeathError(BaseException):
    """The process has been killed."""


@dataclass(frozen=True)
class Fault:
    """What befalls one operation of a rank."""

    kind: str
    rank: int
    operation: int


class Store:
    """What the ranks write to, and what the network holds back of that."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.records: list[str] = []
        self.late: list[Callable[[], object]] = []

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        event = scheduler.turn()
        there = self.keys.get(key)
        if there is None and expected:
            event.reads(bit(key), key, there)
            return expected.encode()  # so PyTorch answers where there is no such key
        if (there or "") != expected:
            event.reads(bit(key), key, there)
            return (there or "").encode()
        event.changes(bit(key), key, expected, desired)
        self.keys[key] = desired
        if key == "job/step":
            self.records.append(desired)
        return desired.encode()


class Connection:
    """A rank's way to the store."""

    def __init__(self, store: Store, fault: Fault | None) -> None:
        self._store = store
        self._fault = fault
        self._operations = count()
        self.has_failed = False

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        operation = partial(self._store.compare_set, key, expected, desired)
        if self._fault is None or next(self._operations) != self._fault.operation:
            return operation()
        self.has_failed = True
        if self._fault.kind in ("answer lost", "dies after"):
            operation()
        elif self._fault.kind == "late":
            scheduler.turn().changes(bit("network"), "held back", key, desired)
            self._store.late.append(operation)
        raise DeathError if self._fault.kind.startswith("dies") else StoreError


class Job:
    """One execution: the ranks race to their steps, and note what they call."""

    def __init__(
        self, module: ModuleType, ranks: Ranks, every: int, faults: tuple[Fault, ...]
    ) -> None:
        scheduler.begin()
        self._module, self._ranks, self._every = module, ranks, every
        self._store = Store()
        self._dead: set[int] = set()
        self._problems: list[str] = []
        befalls = {fault.rank: fault for fault in faults}
        self.connections = [
            Connection(self._store, befalls.get(rank)) for rank in range(len(ranks))
        ]
        self._calls: list[list[int]] = [[] for _ in ranks]
        self._rises = [
            module.Rises(f"rank{rank}", every, 0, calls.append)
            for rank, calls in enumerate(self._calls)
        ]
        for rises in self._rises:
            rises.enter(self._store)
        bodies: list[Callable[[], None]] = [partial(self._run, rank) for rank in range(len(ranks))]
        bodies += [self._deliver for fault in faults if fault.kind == "late"]
        scheduler.start(bodies, range(len(bodies)))

    def _run(self, rank: int) -> None:
        try:
            for step in self._ranks[rank]:
                self._reach(rank, step)
        except DeathError:
            self._dead.add(rank)
        except self._module.LostError as error:
            self._problems.append(f"rank {rank}: {error}")

    def _reach(self, rank: int, step: int) -> None:
        try:
            self._rises[rank].raise_to(self.connections[rank], step)
        except StoreError:
            self._rises[rank].enter(self.connections[rank])
            self._reach(rank, step)

    def _deliver(self) -> None:
        """Deliver what is held back; at a moment when nothing is, this has come too early."""
        scheduler.turn().changes(bit("network"), "delivery")
        for operation in self._store.late:
            operation()

    def problem(self) -> str:
        """Say what is wrong with this execution; "" for nothing."""
        steps = [int(record.split()[0]) for record in self._store.records]
        due: list[list[int]] = [[] for _ in self._ranks]
        for before, record in zip(steps, self._store.records[1:], strict=False):
            step, winner = record.split()
            rises = range(before + self._every, int(step) + 1, self._every)
            due[int(winner.removeprefix("rank"))] += rises
        for rank, (calls, wins) in enumerate(zip(self._calls, due, strict=True)):
            if calls != (wins[: len(calls)] if rank in self._dead else wins):
                self._problems.append(f"rank {rank} won {wins} and called {calls}")
        goals = [goal for rank, goal in enumerate(map(max, self._ranks)) if rank not in self._dead]
        if steps[-1] < max(goals, default=0) // self._every * self._every:
            self._problems.append(f"the job has come to {steps[-1]} only")
        return "; ".join(self._problems)


def examine(
    module: ModuleType, ranks: Ranks, *faults: Fault, every: int = 1
) -> tuple[str, list[bool]]:
    """Explore; return the first problem, and of which ranks an operation ever failed."""
    jobs: list[Job] = []
    failed = [False] * len(ranks)

    def start() -> None:
        jobs[:] = [Job(module, ranks, every, faults)]

    for _ in explore(start):
        if scheduler.runnable():
            return "a rank never ends", failed
        for rank, connection in enumerate(jobs[-1].connections):
            failed[rank] |= connection.has_failed
        if problem := jobs[-1].problem():
            scheduler.stop()
            return problem, failed
    return "", failed


def first_problem(module: ModuleType, ranks: Ranks, kind: str) -> str:
    """Let each operation of each rank fail in turn; return what goes wrong first."""
    for rank in range(len(ranks)):
        for operation in count():
            problem, failed = examine(module, ranks, Fault(kind, rank, operation))
            if problem:
                return f"{kind}, rank {rank}, operation {operation}: {problem}"
            if not failed[rank]:
                break
    return ""


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
def test_each_multiple_is_called_once(ranks: Ranks, every: int) -> None:
    assert examine(load(), ranks, every=every)[0] == ""


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
def test_whichever_operation_of_whichever_rank_fails(ranks: Ranks, kind: str) -> None:
    assert first_problem(load(), ranks, kind) == ""


@pytest.mark.explore
@pytest.mark.parametrize("kind", FAULTS)
def test_more_ranks_that_overtake_each_other(kind: str) -> None:
    assert first_problem(load(), LONGER, kind) == ""


@pytest.mark.parametrize("first", FAULTS)
@pytest.mark.parametrize(
    "second", [*FAULTS[:2], pytest.param("late", marks=pytest.mark.explore), *FAULTS[3:]]
)
def test_operations_of_two_ranks_fail(first: str, second: str) -> None:
    for one, other in product(range(5), range(5)):
        faults = Fault(first, 0, one), Fault(second, 1, other)
        assert examine(load(), RANKS["overtaking"], *faults)[0] == "", faults


MUTANTS = {
    "nobody is credited": ("                self._credit(store)\n", ""),
    "the credit is not looked for": ("is_won = credited == self._attempt", "is_won = False"),
    "a credit falls": ("if _step(now) >= _step(self._seen):", "if now == self._seen:"),
    "the credit is looked for first": (
        """        now = store.compare_set(STEP, self._seen, self._attempt).decode()
        if now""",
        """        credits = self._credits(self._attempt)
        credited = store.compare_set(credits, "", "").decode()
        now, early = store.compare_set(STEP, self._seen, self._attempt).decode(), credited
        if now""",
        "is_won = credited == self._attempt",
        "is_won = early == self._attempt",
    ),
    "a try is forgotten": (
        '        if not self._attempt:\n            self._see(store.compare_set(STEP, "", "")',
        '        self._attempt = ""\n        if True:\n'
        '            self._see(store.compare_set(STEP, "", "")',
    ),
    "a new connection looks first": (
        '        if not self._attempt:\n            self._see(store.compare_set(STEP, "", self._r',
        '        if True:\n            self._see(store.compare_set(STEP, "", self._r',
    ),
    "others' rises are called": ("first = self.step + self._every", "first = self._every"),
    "only the last is called": ("range(first,", "range(_step(won),"),
}


def load(*mutations: str) -> ModuleType:
    """Execute the source that ships, with these texts each replaced by the one that follows."""
    source = SOURCE
    for before, after in zip(mutations[::2], mutations[1::2], strict=True):
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    module = ModuleType("rises_under_exploration")
    exec(compile(source, "rises.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_each_step_that_looks_needless_is_needed(mutant: tuple[str, ...]) -> None:
    """Break it, and an execution goes wrong."""
    module = load(*mutant)
    assert any(
        examine(module, ranks)[0] or any(first_problem(module, ranks, kind) for kind in FAULTS)
        for ranks in RANKS.values()
    )


def test_what_a_store_forgot_is_not_called_again() -> None:
    calls: list[int] = []
    rises = load().Rises("rank0", 2, 0, calls.append)
    for last in (6, 7, 11):
        store = Store()
        rises.enter(store)
        rises.raise_to(store, last)
        assert rises.step == last // 2 * 2
        store.keys.clear()
        with pytest.raises(RuntimeError, match="gone"):
            rises.raise_to(store, last + 2)
    assert calls == [2, 4, 6, 8, 10]


def test_what_a_rank_has_seen_raised_it_puts_back_for_all() -> None:
    rises, other = (load().Rises(name, 2, 0, [].append) for name in ("rank0", "rank1"))
    store = Store()
    for one, step in ((rises, 2), (other, 10), (rises, 4)):
        one.enter(store)
        one.raise_to(store, step)
    store.keys.clear()
    rises.enter(store)
    rises.raise_to(store, 4)
    assert store.records[-1] == "10 rank0"


def test_the_job_begins_where_its_first_rank_does() -> None:
    calls: list[int] = []
    store = Store()
    for identity, start in (("rank0", 1_007), ("rank1", 1_030)):
        rises = load().Rises(identity, 10, start, calls.append)
        rises.enter(store)
        rises.raise_to(store, start)
    assert calls == [1_010, 1_020, 1_030]
