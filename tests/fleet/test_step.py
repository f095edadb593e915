"""What a rank says and does: steps, callbacks, arguments, trouble with the store, and forks."""

from __future__ import annotations

import doctest
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch.distributed
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore

from kineto_step_tracker import KinetoStepTracker, StepTracker
from kineto_step_tracker.fleet import FleetStep, step
from kineto_step_tracker.fleet.board import Board
from tests.conftest import run_together

from .stores import (
    AGAIN,
    LONG,
    PREFIX,
    TROUBLE,
    Connect,
    Job,
    Rank,
    Script,
    ScriptedStore,
    fail,
    fail_at,
    job_step,
    logged,
    reported,
    wait_until,
)

# By this its thread dies here, as its process might.
UNHANDLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def test_example_in_the_docstring() -> None:
    result = doctest.testmod(step)
    assert result.attempted > 0
    assert result.failed == 0


def test_what_every_rank_says_of_all(connect: Connect, job: Job) -> None:
    """Ranks that have not stepped are there with 0; one that never publishes is left out."""
    ranks = [job.start(connect(), rank, world_size=4) for rank in range(3)]
    ranks[0].train(5)
    ranks[1].train(3)
    for rank in ranks:
        wait_until(lambda: rank.says() == {0: 5, 1: 3, 2: 0})  # noqa: B023
        assert rank.fleet.current_step() == 5
        assert rank.fleet.skew() == 5
        assert rank.fleet.stragglers() == rank.fleet.stragglers(behind=2) == [1, 2, 3]
        assert rank.fleet.stragglers(behind=3) == [2, 3]
        assert rank.fleet.stragglers(behind=6) == [3]
        assert all(0 <= age < LONG for _, age in rank.fleet.steps().values())


def test_before_anything_is_published(job: Job) -> None:
    with reported(TROUBLE):
        alone = job.start(ScriptedStore(HashStore(), Script(before=fail)))
    assert alone.says() == {}
    assert alone.fleet.current_step() == alone.fleet.skew() == 0
    assert alone.fleet.stragglers() == [0, 1]


def test_its_own_step_counts_before_it_is_published_and_never_falls(job: Job) -> None:
    rank = job.start(HashStore(), interval=1000)
    wait_until(lambda: rank.says() == {0: 0})
    rank.train(3)
    assert rank.fleet.current_step() == 3
    assert rank.says() == {0: 0}
    rank.tracker.reset()
    assert rank.fleet.current_step() == 3


def test_the_step_of_the_job_never_falls(connect: Connect, job: Job) -> None:
    """Though a rank's own does, and others restart from less."""
    rank = job.start(connect(), start=9)
    wait_until(lambda: rank.fleet.current_step() == 9)
    rank.tracker.reset()
    wait_until(lambda: rank.says() == {0: 0})
    other = job.start(connect(), 1)
    wait_until(lambda: other.says() == {0: 0, 1: 0})
    assert rank.fleet.current_step() == other.fleet.current_step() == job_step(connect()) == 9
    rank.train(10)
    wait_until(lambda: job.calls == [10])


def test_the_age_of_a_rank_that_has_ended_grows(connect: Connect, job: Job) -> None:
    ranks = [job.start(connect(), rank) for rank in range(2)]
    for rank in ranks:
        wait_until(lambda: rank.says() == {0: 0, 1: 0})  # noqa: B023
    ranks[1].fleet.close()
    wait_until(lambda: ranks[0].age(1) > 0.2)
    assert ranks[0].age(0) < ranks[0].age(1)
    # One that is closed itself reads no more, yet what it has read grows older.
    before = ranks[1].age(0)
    wait_until(lambda: ranks[1].age(0) > before + 0.1)


def test_what_was_read_lately_is_not_read_again(job: Job) -> None:
    script = Script()
    rank = job.start(ScriptedStore(HashStore(), script), interval=1000)
    for _ in range(100):
        rank.fleet.steps()
    assert script.operations.count("multi_get") == 1


@pytest.mark.parametrize("every", [1, 7])
def test_each_multiple_runs_once_over_all_ranks(
    connect: Connect, job: Job, every: int, log: pytest.LogCaptureFixture
) -> None:
    """Ranks that go at different speeds, by single steps and by jumps over several multiples."""
    ranks = [job.start(connect(), rank, world_size=3, every=every) for rank in range(3)]
    last = 84

    def train(number: int, burst: int, pause: float) -> None:
        while (step := ranks[number].tracker.current_step()) < last:
            ranks[number].train(min(burst, last - step))
            time.sleep(pause)

    run_together(lambda: train(0, 1, 0.002), lambda: train(1, 30, 0.07), lambda: train(2, 5, 0.012))
    wait_until(lambda: len(job.calls) >= last // every)
    job.close()
    assert sorted(job.calls) == list(range(every, last + 1, every))
    assert all(rank.calls == sorted(rank.calls) for rank in ranks)
    assert log.messages == []
    assert job_step(connect()) == last


def test_a_jump_runs_every_multiple_in_order(connect: Connect, job: Job) -> None:
    rank = job.start(connect(), every=7)
    rank.train(6)
    wait_until(lambda: rank.says() == {0: 6})
    assert job.calls == []
    rank.train(30)
    wait_until(lambda: len(job.calls) == 5)
    assert job.calls == [7, 14, 21, 28, 35]


def test_what_was_counted_before_the_job_calls_nothing(connect: Connect, job: Job) -> None:
    """Nor does what other ranks counted, which are there later, up to where the job is."""
    first = job.start(connect(), start=23, every=5)
    wait_until(lambda: job_step(connect()) == 20)
    second = job.start(connect(), 1, start=11, every=5)
    wait_until(lambda: second.says() == {0: 23, 1: 11})
    second.train(20)
    wait_until(lambda: job.calls == [25, 30])
    first.train(12)
    wait_until(lambda: job.calls == [25, 30, 35])
    assert (first.calls, second.calls) == ([35], [25, 30])


def test_without_a_callback_the_job_rises_too(connect: Connect, job: Job) -> None:
    job.start(connect(), on_step=None).train(3)
    wait_until(lambda: job_step(connect()) == 3)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_from_on_step_is_logged_and_later_steps_still_come(
    job: Job, log: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    calls: list[int] = []

    def on_step(step: int) -> None:
        calls.append(step)
        if step in (1, 2):
            raise error("on purpose")

    rank = job.start(HashStore(), on_step=on_step)
    rank.train(3)
    wait_until(lambda: calls == [1, 2, 3])
    rank.train()
    wait_until(lambda: calls == [1, 2, 3, 4])
    assert log.messages == [
        f"on_step({step}) raised an exception; training goes on" for step in (1, 2)
    ]
    assert all(record.exc_info is not None for record in log.records)


def test_on_step_reads_the_other_ranks_at_once(connect: Connect, job: Job) -> None:
    said: list[tuple[dict[int, int], int]] = []

    def on_step(step: int) -> None:
        said.append((ours.says(), ours.fleet.current_step()))

    ours = job.start(connect(), interval=1000, on_step=on_step)
    wait_until(lambda: ours.says() == {0: 0})
    theirs = job.start(connect(), 1)
    theirs.train(3)
    theirs.fleet.close()
    ours.train(4)
    ours.fleet.close()
    assert said == [({0: 4, 1: 3}, 4)]


def test_no_thread_but_its_own_touches_the_store(job: Job) -> None:
    """But one that connects. Nor does it touch the tracker, but to ask for the step."""
    script, asked = Script(), set()

    class Tracker:
        def __getattribute__(self, name: str) -> Any:
            asked.add(name)
            return tracker.current_step

    tracker = StepTracker()
    rank = job.start(ScriptedStore(HashStore(), script), tracker=Tracker())
    for _ in range(300):
        tracker.increment_step("SGD#1")
        rank.fleet.current_step()
        rank.fleet.stragglers()
    wait_until(lambda: len(job.calls) == 300)
    rank.fleet.close()
    connecting, own = sorted(script.threads, key=lambda thread: thread is rank.fleet._thread)
    assert (connecting.name, own) == ("kineto-step-tracker connecting", rank.fleet._thread)
    assert asked == {"current_step"}


def test_a_store_that_does_not_answer_holds_up_nobody(job: Job) -> None:
    """Who counts goes on; who asks, or closes, waits no longer than that says."""
    answer = threading.Event()
    script = Script(before=lambda number, key: answer.wait())
    rank = job.start(ScriptedStore(HashStore(), script))
    begin = time.monotonic()
    rank.train(10_000)
    assert rank.fleet.current_step() == 10_000
    assert len(script.operations) <= 1
    rank.fleet.close(0.1)
    assert not rank.has_ended()
    assert time.monotonic() - begin < LONG / 2
    answer.set()
    wait_until(rank.has_ended)
    assert Board(script.stores[0], 2, PREFIX).read()[0].step == 10_000


def test_a_rank_that_restarts_goes_on_under_its_number(
    connect: Connect, job: Job, log: pytest.LogCaptureFixture
) -> None:
    """Nothing is called again, nor reported, though another process was it before."""
    first = job.start(connect())
    first.train(5)
    first.fleet.close()
    second = job.start(connect())
    second.train(2)
    wait_until(lambda: second.says() == {0: 2})
    assert second.fleet.current_step() == 5
    second.train(4)
    wait_until(lambda: job.calls == [1, 2, 3, 4, 5, 6])
    assert log.messages == []


@UNHANDLED
def test_a_winner_that_dies_before_its_callback_makes_it_at_most_once(
    connect: Connect, job: Job
) -> None:
    def die(number: int, key: str) -> None:
        if key.endswith("job/step") and job_step(connect()) == 2:
            raise SystemExit

    first = job.start(ScriptedStore(connect(), Script(after=die)))
    first.train()
    wait_until(lambda: job.calls == [1])
    first.train()
    wait_until(first.has_ended)
    for rank in range(2):
        job.start(connect(), rank).train(3)
    wait_until(lambda: 3 in job.calls)
    job.close()
    assert job.calls == [1, 3]


@pytest.mark.parametrize("by", ["argument", "PrefixStore"])
def test_two_jobs_on_one_store_do_not_mix(connect: Connect, job: Job, by: str) -> None:
    """Their prefixes need not differ by much, nor they in what else they are."""
    other = Job()
    if by == "argument":
        ours = job.start(connect(), prefix="a")
        theirs = other.start(connect(), 1, prefix="a/rank", world_size=3, every=2)
    else:
        ours = job.start(PrefixStore("a", connect()))
        theirs = other.start(PrefixStore("b", connect()), 1, world_size=3, every=2)
    ours.train(3)
    theirs.train(8)
    wait_until(lambda: ours.says() == {0: 3} and theirs.says() == {1: 8})
    job.close()
    other.close()
    assert job.calls == [1, 2, 3]
    assert other.calls == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("other", "theirs"), [({"world_size": 3}, "(1, 3, 1)"), ({"every": 2}, "(1, 2, 2)")]
)
def test_a_rank_that_was_given_something_else_publishes_nothing(
    connect: Connect, job: Job, log: pytest.LogCaptureFixture, other: dict[str, int], theirs: str
) -> None:
    first = job.start(connect())
    wait_until(lambda: first.says() == {0: 0})
    with reported("rank 1 publishes nothing: another job uses this prefix in this store"):
        second = job.start(connect(), 1, **other)
    assert f"are (1, 2, 1) there and {theirs} here" in log.messages[0]
    wait_until(second.has_ended)
    second.train(4)
    first.train(2)
    wait_until(lambda: job.calls == [1, 2] and first.says() == {0: 2})
    assert second.says() == {}
    assert second.fleet.current_step() == 4
    assert len(log.messages) == 1


def test_it_says_so_after_trouble_too(job: Job, log: pytest.LogCaptureFixture) -> None:
    store = HashStore()
    Board(store, 2, PREFIX).agree(1)
    script = Script(before=fail_at(0))
    second = job.start(ScriptedStore(store, script), 1, every=2)
    wait_until(second.has_ended)
    assert [logged(log, text) for text in (TROUBLE, "rank 1 publishes nothing")] == [1, 1]


def test_another_process_under_the_same_rank_is_reported_once(
    connect: Connect, job: Job, log: pytest.LogCaptureFixture
) -> None:
    ours = job.start(connect())
    board = Board(connect(), 2, PREFIX)
    wait_until(lambda: ours.says() == {0: 0})

    def is_seen() -> bool:
        board.publish(0, 7, "another")
        return ours.says() == {0: 7}

    with reported("another process publishes as rank 0 too"):
        wait_until(is_seen)
    wait_until(lambda: ours.says() == {0: 0})
    wait_until(is_seen)
    ours.train(2)
    wait_until(lambda: job.calls == [1, 2])
    assert log.messages == ["another process publishes as rank 0 too"]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"store": {}}, TypeError, "store must be a torch.distributed store or None, not {}"),
        ({"tracker": 3}, TypeError, "tracker must have current_step(), not be 3"),
        ({"rank": "0"}, TypeError, "rank must be an int, not '0'"),
        ({"rank": True}, TypeError, "rank must be an int, not True"),
        ({"rank": -1}, ValueError, "rank must be from 0 to 1, not -1"),
        ({"rank": 2}, ValueError, "rank must be from 0 to 1, not 2"),
        ({"world_size": 2.0}, TypeError, "world_size must be an int, not 2.0"),
        ({"world_size": 0}, ValueError, "world_size must be from 1 up, not 0"),
        ({"every": 1.5}, TypeError, "every must be an int, not 1.5"),
        ({"every": 0}, ValueError, "every must be from 1 up, not 0"),
        ({"on_step": 3}, TypeError, "on_step must be callable or None, not 3"),
        ({"interval": "1"}, TypeError, "interval must be a number of seconds, not '1'"),
        ({"interval": True}, TypeError, "interval must be a number of seconds, not True"),
        ({"interval": 0}, ValueError, "interval must be above 0 seconds, not 0"),
        ({"interval": -1.0}, ValueError, "interval must be from 0 seconds up, not -1.0"),
        ({"interval": math.nan}, ValueError, "interval must be from 0 seconds up, not nan"),
        ({"interval": math.inf}, ValueError, "interval must be from 0 seconds up, not inf"),
        ({"prefix": ""}, ValueError, "prefix must not be empty"),
        ({"prefix": 3}, TypeError, "prefix must be a str, not 3"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], error: type[Exception], says: str) -> None:
    """And no thread is left of it."""
    good: dict[str, Any] = {"store": HashStore(), "tracker": StepTracker(), "rank": 0}
    with pytest.raises(error, match=f"^{re.escape(says)}$"):
        FleetStep(**good | {"world_size": 2} | given)


def test_bad_arguments_of_methods_are_named(job: Job) -> None:
    """Also where there is nothing to do any more."""
    fleet = job.start(HashStore()).fleet
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^behind must be from 1 up, not 0$"):
            fleet.stragglers(0)
        with pytest.raises(TypeError, match=r"^behind must be an int, not 1.0$"):
            fleet.stragglers(1.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^timeout must be from 0 seconds up, not -1$"):
            fleet.close(-1)
        with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, not None$"):
            fleet.close(None)  # type: ignore[arg-type]
        fleet.close()


def test_rank_and_world_size_come_from_torchrun(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    rank = job.start(HashStore(), None, world_size=None)
    wait_until(lambda: rank.says() == {2: 0})
    assert rank.fleet.stragglers() == [0, 1]


def test_all_of_it_comes_from_the_process_group(
    job: Job,
    tmp_path: Path,
    process_wide: type[KinetoStepTracker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where torchrun's environment says something else."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    store = FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        rank = job.start(None, None, world_size=None, tracker=process_wide)
        process_wide.increment_step("SGD#1")
        wait_until(lambda: rank.says() == {0: 1} and job.calls == [1])
        assert rank.fleet.stragglers() == []
        job.close()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rank": 0}, "world_size is not given, and there is neither a process group nor torchrun"),
        ({"world_size": 2}, "rank is not given, and there is neither a process group nor torchrun"),
        ({"world_size": 2, "rank": 0}, "store is not given, and there is no process group"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, int], says: str
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(RuntimeError, match=f"^{re.escape(says)}"):
        FleetStep(**given)  # type: ignore[arg-type]


def test_closing_publishes_the_last_step_however_long_the_interval(
    connect: Connect, job: Job
) -> None:
    with job.start(connect(), interval=1000).fleet as fleet:
        rank = job.ranks[0]
        wait_until(lambda: rank.says() == {0: 0})
        assert repr(fleet) == "<FleetStep 'kineto_step_tracker', rank 0 of 2>"
        rank.train(3)
    fleet.close()
    assert repr(fleet) == "<FleetStep 'kineto_step_tracker', rank 0 of 2, closed>"
    assert rank.has_ended()
    assert job.calls == [1, 2, 3]
    assert Board(connect(), 2, PREFIX).read()[0].step == 3
    rank.train()
    assert fleet.current_step() == 4


def test_on_step_may_close(job: Job, log: pytest.LogCaptureFixture) -> None:
    """What it has risen to still runs."""
    store, calls = HashStore(), list[int]()

    def on_step(step: int) -> None:
        calls.append(step)
        rank.fleet.close()

    rank = job.start(store, on_step=on_step, every=2)
    rank.train(7)
    wait_until(rank.has_ended)
    assert calls == [2, 4, 6]
    assert log.messages == []
    assert Board(store, 2, PREFIX).read()[0].step == 7


def test_closing_warns_of_nothing(job: Job, log: pytest.LogCaptureFixture) -> None:
    script = Script()
    rank = job.start(ScriptedStore(HashStore(), script), interval=1000)
    wait_until(lambda: rank.says() == {0: 0})
    script.before = fail
    rank.fleet.close()
    assert rank.has_ended()
    assert log.messages == []


def test_a_store_that_always_fails_is_reported_once(
    job: Job, log: pytest.LogCaptureFixture
) -> None:
    script = Script(before=fail)
    with reported(f"rank 0 {TROUBLE}: operation 0, on clone, fails on purpose"):
        rank = job.start(ScriptedStore(HashStore(), script))
        rank.train(3)
        wait_until(lambda: len(script.operations) >= 5)
    assert len(log.messages) == 1
    script.before = lambda number, key: None
    wait_until(lambda: job.calls == [1, 2, 3] and len(log.messages) == 2)
    assert log.messages[1] == f"rank 0 {AGAIN}"
    with reported(f"rank 0 {TROUBLE}"):  # It is news again.
        script.before = fail


def test_warnings_that_are_errors_do_not_end_it(job: Job, log: pytest.LogCaptureFixture) -> None:
    """They are all through these tests, but where `reported` catches them."""
    script = Script(before=fail_at(3))
    job.start(ScriptedStore(HashStore(), script)).train(3)
    wait_until(lambda: job.calls == [1, 2, 3])
    assert logged(log, TROUBLE) == 1


def test_a_tracker_that_raises_is_trouble_and_no_more(job: Job) -> None:
    tracker = StepTracker()
    says: list[Callable[[], int]] = [tracker.current_step]

    class Tracker:
        def current_step(self) -> int:
            return says[-1]()

    job.start(HashStore(), tracker=Tracker())
    with reported(f"rank 0 {TROUBLE}: StopIteration"):
        says.append(lambda: next(iter(())))
    says.append(lambda: 2)
    wait_until(lambda: job.calls == [1, 2])


def test_it_is_tried_less_and_less_often_however_often_one_asks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_LONGEST_PAUSE", 0.08)
    pauses: list[float | None] = []
    called: list[bool] = []
    wait_for = threading.Condition.wait_for

    def noted(
        self: threading.Condition, predicate: Callable[[], bool], timeout: float | None = None
    ) -> bool:
        if not threading.current_thread().name.startswith("kineto-step-tracker fleet"):
            return wait_for(self, predicate, timeout)

        def asked() -> bool:
            called.append(predicate())
            return called[-1]

        pauses.append(timeout)
        return wait_for(self, asked, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", noted)
    job.start(ScriptedStore(HashStore(), Script(before=fail)))
    wait_until(lambda: len(pauses) >= 6)
    assert pauses[:6] == pytest.approx([0, 0.01, 0.02, 0.04, 0.08, 0.08])
    job.close()
    called.clear()
    monkeypatch.setattr(step, "_LONGEST_PAUSE", LONG)
    rank = job.start(ScriptedStore(HashStore(), Script(before=fail)), interval=LONG)
    wait_until(lambda: len(called) >= 3)
    rank.fleet.steps()
    # It wakes, and sees that it is not called.
    wait_until(lambda: len(called) >= 4)
    assert not any(called)


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("effect", ["before", "after"])
def test_whichever_operation_fails_each_multiple_runs_once(
    log: pytest.LogCaptureFixture, effect: str, every: int
) -> None:
    """Before or after it took effect. At each operation both ranks make a step, up to a last."""
    last = 12
    for which in range(20):
        log.clear()
        job, store, ranks = Job(), HashStore(), list[Rank]()

        def fault(number: int, key: str) -> None:
            for rank in ranks:  # noqa: B023
                rank.train(rank.tracker.current_step() < last)
            if number == which:  # noqa: B023
                fail(number, key)

        script = Script(before=fault) if effect == "before" else Script(after=fault)
        more: dict[str, Any] = {"every": every, "interval": 0.001}
        ranks.append(job.start(store, 1, **more))
        wait_until(lambda: job_step(store) == 0 and ranks[0].says())  # noqa: B023
        ranks.append(job.start(ScriptedStore(store, script), **more))
        wait_until(lambda: len(script.operations) > which + 20)  # noqa: B023
        wait_until(lambda: len(job.calls) >= last // every)  # noqa: B023
        job.close()
        assert sorted(job.calls) == list(range(every, last + 1, every)), which
        assert [logged(log, text) for text in (TROUBLE, AGAIN, "")] == [1, 1, 2]


@pytest.mark.parametrize("keys", [("job/form", "job/step", "rank/0"), ("job/step",), ("rank/0",)])
def test_what_the_store_lost_is_filled_in_again_and_not_run_again(
    job: Job, keys: tuple[str, ...]
) -> None:
    store = HashStore()
    rank = job.start(store)
    rank.train(3)
    wait_until(lambda: job.calls == [1, 2, 3])
    for key in keys:
        store.delete_key(f"{PREFIX}/{key}")
    rank.train()
    wait_until(lambda: job_step(store) == 4 and 4 in job.calls and rank.says() == {0: 4})
    job.close()
    assert job.calls == [1, 2, 3, 4]
    assert Board(store, 2, PREFIX).form() == (2, 1)


def in_child(check: Callable[[], None]) -> None:
    """Fail if it raised in a child, or took long."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(LONG))
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_a_child_it_is_closed_and_nothing_waits(connect: Connect, job: Job) -> None:
    """Also when another thread held its lock at the fork, as its own does for moments."""
    rank = job.start(connect())
    rank.train(3)
    wait_until(lambda: rank.says() == {0: 3})

    def check() -> None:
        begin = time.monotonic()
        rank.train(2)
        assert rank.says() == {0: 3}
        assert rank.fleet.current_step() == 5
        assert rank.fleet.skew() == 0
        assert rank.fleet.stragglers() == [1]
        assert repr(rank.fleet).endswith(", closed>")
        rank.fleet.close()
        rank.fleet.close()
        assert time.monotonic() - begin < 2

    in_child(check)
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with rank.fleet._changed:
            held.set()
            forked.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        in_child(check)
    finally:
        forked.set()
        holder.join()
    rank.train()
    wait_until(lambda: job.calls == [1, 2, 3, 4] and rank.says() == {0: 4})
