"""The clocks, on clocks that only the statements move: so what they return is known exactly."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import pytest

from kineto_step_tracker.bench import clocks
from kineto_step_tracker.bench.clocks import Work, in_turns, throughput

# Parts of a second whose sums are exact.
LONG, SHORT = 2**-10, 2**-20


class Clock(threading.local):
    """Stands still, for each thread by itself, but for what is spent."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def work(self, seconds: float) -> Work:
        return Work("spend(seconds)", {"spend": self.spend, "seconds": seconds})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(clocks, "perf_counter", clock)
    return clock


@pytest.fixture(params=[True, False], ids=["gc on", "gc off"])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    collecting: bool = request.param
    (gc.enable if collecting else gc.disable)()
    yield collecting
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("times", [0, 1, 7])
def test_a_loop_executes_the_statement_so_many_times_and_says_what_they_took(
    clock: Clock, times: int
) -> None:
    seen: list[object] = []
    work = Work("note(word); spend(2)", {"note": seen.append, "word": "done", "spend": clock.spend})
    assert work.loop()(times) == 2 * times
    assert seen == ["done"] * times


def test_each_work_has_the_seconds_of_one_execution_turn_by_turn(clock: Clock) -> None:
    works = {"short": clock.work(SHORT), "long": clock.work(LONG)}
    assert in_turns(works, 3) == {"short": [SHORT] * 3, "long": [LONG] * 3}


def test_what_disturbs_a_run_does_not_count(clock: Clock) -> None:
    disturbed = cycle([3.0, 1.0])
    work = Work("spend(next(seconds))", {"spend": clock.spend, "seconds": disturbed})
    assert in_turns({"disturbed": work}, 4) == {"disturbed": [1.0] * 4}


def test_each_turn_begins_with_another_work_and_is_in_its_context(clock: Clock) -> None:
    entered: list[str] = []
    inside: list[str] = []

    @contextmanager
    def around(key: str) -> Iterator[None]:
        entered.append(key)
        inside.append(key)
        yield
        inside.remove(key)

    def step(key: str) -> None:
        assert inside == [key]
        clock.spend(1)

    works = {
        key: Work("step(key)", {"step": step, "key": key}, partial(around, key)) for key in "abc"
    }
    in_turns(works, 4)
    # Once each before the turns, to find out how many executions make a run.
    assert "".join(entered) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert inside == []


def test_the_share_that_is_done_rises_to_one(clock: Clock) -> None:
    shares: list[float] = []
    in_turns({"a": clock.work(1), "b": clock.work(1)}, 4, shares.append)
    assert shares == [number / 8 for number in range(1, 9)]


@pytest.mark.parametrize("last", [1, 2], ids=["before the turns", "in a turn"])
def test_a_statement_that_raises_leaves_its_context_and_the_collector_as_it_was(
    clock: Clock, collecting: bool, last: int
) -> None:
    left: list[BaseException] = []
    done: list[None] = []

    @contextmanager
    def around() -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as error:
            left.append(error)
            raise

    def step() -> None:
        clock.spend(1)
        done.append(None)
        if len(done) == last:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        in_turns({"bad": Work("step()", {"step": step}, around)}, 1)
    assert left == [raised.value]
    assert gc.isenabled() == collecting


def measure_in_turns(work: Work) -> object:
    return in_turns({"one": work}, 2)


def measure_throughput(work: Work) -> object:
    return throughput([lambda: work, lambda: work], 2)


@pytest.mark.parametrize("measure", [measure_in_turns, measure_throughput])
def test_garbage_is_not_collected_while_it_is_measured(
    clock: Clock, collecting: bool, measure: Callable[[Work], object]
) -> None:
    seen: set[bool] = set()

    def step() -> None:
        seen.add(gc.isenabled())
        clock.spend(1)

    measure(Work("step()", {"step": step}))
    assert seen == {False}
    assert gc.isenabled() == collecting


def test_throughput_is_all_executions_over_the_time_from_first_to_last(clock: Clock) -> None:
    def maker(begin: float, seconds: float) -> Callable[[], Work]:
        def make() -> Work:
            clock.spend(begin)
            return clock.work(seconds)

        return make

    # Both go on for 0.25 s, one at 1024 a second, and one at 512.
    assert throughput([maker(0, LONG), maker(0, 2 * LONG)], 0.25) == (256 + 128) / 0.25
    assert throughput([maker(0, LONG), maker(0.5, 2 * LONG)], 0.25) == (256 + 128) / 0.75


def test_a_thread_looks_at_the_clock_less_often_the_faster_its_work_is(clock: Clock) -> None:
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return clock.now

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "perf_counter", look)
        assert throughput([lambda: clock.work(SHORT)], 0.25) == pytest.approx(1 / SHORT)
    executions = 0.25 / SHORT
    assert looks < executions / 100


def test_every_thread_makes_its_own_work_and_executes_it(clock: Clock) -> None:
    made: list[int] = []
    executed: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}

    def make(number: int) -> Work:
        made.append(threading.get_ident())
        mine = threading.get_ident()

        def step() -> None:
            executed[number].add(threading.get_ident())
            assert threading.get_ident() == mine
            clock.spend(1)

        return Work("step()", {"step": step})

    throughput([partial(make, number) for number in executed], 2)
    # None has ended before all have begun, so no identifier was used again.
    assert len(set(made)) == 3
    assert {frozenset(threads) for threads in executed.values()} == {
        frozenset({thread}) for thread in made
    }
    assert threading.get_ident() not in made


def test_no_thread_executes_before_the_last_has_made_its_work(clock: Clock) -> None:
    made: list[int] = []
    early = threading.Event()

    def make(number: int) -> Work:
        if number == 0:
            early.wait(0.2)
        made.append(number)
        return Work("step()", {"step": step})

    def step() -> None:
        if len(made) < 3:
            early.set()
        clock.spend(1)

    throughput([partial(make, number) for number in range(3)], 2)
    assert not early.is_set()


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("where", ["maker", "statement"])
def test_an_error_on_one_thread_ends_it_as_that_error(
    clock: Clock, collecting: bool, bad: int, where: str
) -> None:
    def fail() -> None:
        raise ZeroDivisionError(where)

    def make(number: int) -> Work:
        if number != bad:
            return clock.work(1)
        if where == "maker":
            fail()
        return Work("fail()", {"fail": fail})

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match=f"^{where}$"):
        throughput([partial(make, number) for number in range(3)], 2)
    assert threading.active_count() == before
    assert gc.isenabled() == collecting


def test_a_thread_that_cannot_start_leaves_none_waiting_for_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a limit of threads, or when Ctrl-C comes between two starts."""
    started: list[threading.Thread] = []

    class Limited(threading.Thread):
        def start(self) -> None:
            if started:
                raise RuntimeError("can't start new thread")
            self.daemon = True  # lest it keep a failing test's process alive
            super().start()
            started.append(self)

    monkeypatch.setattr(threading, "Thread", Limited)
    with pytest.raises(RuntimeError, match=r"^can't start new thread$"):
        throughput([partial(clock.work, 1)] * 2, 2)
    started[0].join(5)
    assert not started[0].is_alive()
