"""What a rank says and does: steps, callbacks, arguments, trouble with the store, and forks."""

from __future__ import annotations

import copy
import doctest
import itertools
import logging
import math
import os
import pickle
import re
import signal
import threading
import time
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch.distributed
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore

from kineto_step_tracker import KinetoStepTracker, StepTracker
from kineto_step_tracker.fleet import FleetStep, observer, step
from kineto_step_tracker.fleet.board import Board
from tests.conftest import run_together

from .stores import (
    AGAIN,
    LONG,
    PREFIX,
    TROUBLE,
    Connect,
    Job,
    ScriptedStore,
    fail,
    job_step,
    reported,
    wait_until,
)


@pytest.mark.parametrize("module", [step, observer])
def test_example_in_the_docstring(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_what_every_rank_says_of_all(connect: Connect, job: Job) -> None:
    """Ranks that have not stepped are there with 0; one that never publishes is left out.

    Who has nothing to call has no part in the rises.
    """
    ranks = [job.start(connect(), rank, world_size=4, on_step=None) for rank in range(3)]
    ranks[0].train(5)
    ranks[1].train(3)
    for rank in ranks:
        rank.wait_for({0: 5, 1: 3, 2: 0})
        assert rank.current_step() == 5
        assert rank.skew() == 5
        assert rank.stragglers() == rank.stragglers(behind=2) == [1, 2, 3]
        assert rank.stragglers(behind=3) == [2, 3]
        assert rank.stragglers(behind=6) == [3]
        assert all(0 <= age < LONG for _, age in rank.steps().values())
    assert job_step(connect()) == 0


def test_ranks_without_a_callback_leave_the_rises_to_those_that_have_one(job: Job) -> None:
    store = HashStore()
    without, rank = job.start(store, 1, on_step=None), job.start(store)
    without.train(3)
    without.wait_for({0: 0, 1: 3})
    rank.train(4)
    wait_until(lambda: job.calls == [1, 2, 3, 4])


def test_its_own_step_counts_before_it_is_published_and_never_falls(job: Job) -> None:
    """And what was read less than the interval ago is not read again."""
    store = ScriptedStore(HashStore())
    rank = job.start(store, interval=1000)
    rank.wait_for({0: 0})
    rank.train(3)
    for _ in range(100):
        assert rank.current_step() == 3
        assert rank.says() == {0: 0}
    rank.tracker.reset()
    assert rank.current_step() == 3
    assert store.operations.count("multi_get") == 1


def test_the_step_of_the_job_never_falls(connect: Connect, job: Job) -> None:
    """Though a rank's own does, and others restart from less."""
    rank = job.start(connect(), start=9)
    wait_until(lambda: rank.current_step() == 9)
    rank.tracker.reset()
    rank.wait_for({0: 0})
    other = job.start(connect(), 1)
    other.wait_for({0: 0, 1: 0})
    assert rank.current_step() == other.current_step() == job_step(connect()) == 9
    rank.train(10)
    wait_until(lambda: job.calls == [10])


def test_the_age_of_a_rank_that_has_ended_grows(job: Job) -> None:
    """And so does, for one that has ended, that of the others, as it reads no more."""
    store = HashStore()
    ours, theirs = (job.start(store, rank) for rank in range(2))
    for rank in (ours, theirs):
        rank.wait_for({0: 0, 1: 0})
    theirs.close()
    ours.wait_until_age_grows(1)
    wait_until(lambda: ours.steps()[0].age + 0.1 < ours.steps()[1].age)
    theirs.wait_until_age_grows(0)


@pytest.mark.parametrize("every", [1, 7])
def test_each_multiple_runs_once_over_all_ranks(connect: Connect, job: Job, every: int) -> None:
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
    assert job.log.messages == []
    assert job_step(connect()) == last


def test_what_was_counted_before_the_job_calls_nothing(connect: Connect, job: Job) -> None:
    """Nor does what other ranks counted, which are there later, up to where the job is."""
    first = job.start(connect(), start=23, every=5)
    wait_until(lambda: job_step(connect()) == 20)
    second = job.start(connect(), 1, start=11, every=5)
    second.wait_for({0: 23, 1: 11})
    second.train(29)
    wait_until(lambda: job.calls == [25, 30, 35, 40])
    first.train(22)
    wait_until(lambda: job.calls == [25, 30, 35, 40, 45])
    assert first.calls == [45]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_from_on_step_is_logged_and_later_steps_still_come(
    job: Job, error: type[BaseException]
) -> None:
    calls: list[int] = []

    def on_step(step: int) -> None:
        calls.append(step)
        if step in (1, 2):
            raise error("on purpose")

    rank = job.start(HashStore(), on_step=on_step)
    for steps in (3, 1):
        rank.train(steps)
        wait_until(lambda: calls == list(range(1, rank.tracker.current_step() + 1)))
    assert job.log.messages == [
        f"on_step({step}) raised an exception; training goes on" for step in (1, 2)
    ]
    assert all(record.exc_info is not None for record in job.log.records)


def test_on_step_reads_the_other_ranks_at_once(connect: Connect, job: Job) -> None:
    said: list[tuple[dict[int, int], int]] = []

    def on_step(step: int) -> None:
        said.append((ours.says(), ours.current_step()))

    ours = job.start(connect(), interval=1000, on_step=on_step)
    ours.wait_for({0: 0})
    with job.start(connect(), 1) as theirs:
        theirs.train(3)
        # On a busy machine the host may answer its second attempt only.
        theirs.wait_for({0: 0, 1: 3})
    ours.train(4)
    ours.close(LONG)
    assert said == [({0: 4, 1: 3}, 4)]


def test_no_thread_but_its_own_touches_the_store(job: Job) -> None:
    """But one that connects. Nor does it touch the tracker, but to ask for the step."""
    store, asked = ScriptedStore(HashStore()), set()

    class Tracker:
        def __getattribute__(self, name: str) -> Any:
            asked.add(name)
            return tracker.current_step

    tracker = StepTracker()
    rank = job.start(store, tracker=Tracker())
    for _ in range(300):
        tracker.increment_step("SGD#1")
        rank.current_step()
        rank.stragglers()
    wait_until(lambda: len(job.calls) == 300)
    job.close()
    assert {thread.name for thread in store.threads - {rank._thread}} == {
        "kineto-step-tracker asking"
    }
    assert asked == {"current_step"}


def test_a_store_that_does_not_answer_holds_up_nobody(job: Job) -> None:
    """Who counts goes on; who asks, or closes, waits no longer than that says."""
    answer, inner = threading.Event(), HashStore()
    store = ScriptedStore(inner, before=lambda number, key: answer.wait(LONG))
    rank = job.start(store)
    rank.train(10_000)
    assert rank.current_step() == 10_000
    assert len(store.operations) <= 1
    rank.close(0.1)
    assert not rank.has_ended()
    answer.set()
    wait_until(rank.has_ended)
    assert Board(inner, 2, PREFIX).read()[0].step == 10_000


@pytest.mark.parametrize("by", ["argument", "PrefixStore"])
def test_two_jobs_on_one_store_do_not_mix(connect: Connect, job: Job, by: str) -> None:
    """Their prefixes need not differ by much, nor they in what else they are."""
    calls: list[int] = []
    other: dict[str, Any] = {"world_size": 3, "every": 2, "on_step": calls.append}
    if by == "argument":
        ours = job.start(connect(), prefix="a")
        theirs = job.start(connect(), 1, prefix="a/rank", **other)
    else:
        ours = job.start(PrefixStore("a", connect()))
        theirs = job.start(PrefixStore("b", connect()), 1, **other)
    ours.train(3)
    theirs.train(8)
    ours.wait_for({0: 3})
    theirs.wait_for({1: 8})
    job.close()
    assert job.calls == [1, 2, 3]
    assert calls == [2, 4, 6, 8]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("other", "theirs"),
    [
        ({"world_size": 3}, "world_size is 2 there and 3"),
        ({"every": 2}, "every is 1 there and 2"),
    ],
)
def test_a_rank_that_was_given_something_else_publishes_nothing(
    job: Job, other: dict[str, int], theirs: str, fails: bool
) -> None:
    """That is reported, also if something else was before."""
    store = HashStore()
    first = job.start(store)
    first.wait_for({0: 0})
    scripted = ScriptedStore(
        store, before=lambda number, key: fail(number, key) if fails and number == 0 else None
    )
    second = job.start(scripted, 1, **other)
    wait_until(second.has_ended)
    second.train(4)
    first.train(2)
    first.wait_for({0: 2})
    wait_until(lambda: job.calls == [1, 2])
    assert second.says() == {}
    assert second.current_step() == 4
    assert [TROUBLE in message for message in job.log.messages] == [True] * fails + [False]
    assert job.log.messages[-1] == (
        "rank 1 publishes nothing: another job uses this prefix in this store, or its ranks were "
        "not all given the same: "
        f"{theirs} here"
    )


def test_another_process_under_the_same_rank_is_reported_once(connect: Connect, job: Job) -> None:
    ours = job.start(connect())
    board = Board(connect(), 2, PREFIX)
    ours.wait_for({0: 0})

    def is_seen() -> bool:
        board.publish(0, 7, "another")
        return ours.says() == {0: 7}

    with reported("another FleetStep, here or elsewhere, publishes as rank 0 too"):
        wait_until(is_seen)
    ours.wait_for({0: 0})
    wait_until(is_seen)
    ours.train(2)
    wait_until(lambda: job.calls == [1, 2])
    assert job.log.messages == ["another FleetStep, here or elsewhere, publishes as rank 0 too"]


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("store", {}, TypeError, "be a torch.distributed store or None, not {}"),
        ("tracker", 3, TypeError, "have current_step(), not be 3"),
        ("rank", True, TypeError, "be an int, not True"),
        ("rank", -1, ValueError, "be from 0 to 1, not -1"),
        ("rank", 2, ValueError, "be from 0 to 1, not 2"),
        ("world_size", 0, ValueError, "be from 1 to 9999999, not 0"),
        ("every", 0, ValueError, "be from 1 to 2**62, not 0"),
        ("on_step", 3, TypeError, "be callable or None, not 3"),
        ("interval", "1", TypeError, "be a number of seconds, not '1'"),
        ("interval", True, TypeError, "be a number of seconds, not True"),
        ("interval", 0, ValueError, "be above 0 and at most 1000000 seconds, not 0"),
        ("interval", math.nan, ValueError, "be above 0 and at most 1000000 seconds, not nan"),
        ("interval", 1_000_001, ValueError, "be above 0 and at most 1000000 seconds, not 1000001"),
        ("prefix", "", ValueError, "not be empty"),
        ("prefix", 3, TypeError, "be a str, not 3"),
        ("prefix", "\ud800", ValueError, "be text that UTF-8 can hold, not '\\ud800'"),
    ],
)
def test_bad_arguments_are_named(
    name: str, value: object, error: type[Exception], says: str
) -> None:
    """And no thread is left of it."""
    good = {"store": HashStore(), "tracker": StepTracker(), "rank": 0, "world_size": 2}
    with pytest.raises(error, match=f"^{name} must {re.escape(says)}$"):
        FleetStep(**good | {name: value})  # type: ignore[arg-type]


def test_bad_arguments_of_methods_are_named(job: Job) -> None:
    """Also where there is nothing to do any more."""
    rank = job.start(HashStore())
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^behind must be from 1 to 2\*\*62, not 0$"):
            rank.stragglers(0)
        with pytest.raises(ValueError, match=r"^timeout must be from 0 to 1000000 seconds, not -1"):
            rank.close(-1)
        rank.close()


def test_it_can_be_neither_pickled_nor_copied(job: Job) -> None:
    rank = job.start(HashStore())
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"^a FleetStep can be neither pickled nor copied: "):
            make(rank)


def test_rank_and_world_size_come_from_torchrun(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    rank = job.start(HashStore(), None, world_size=None)
    rank.wait_for({2: 0})
    assert rank.stragglers() == [0, 1]


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
        rank.wait_for({0: 1})
        assert rank.stragglers() == []
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


def test_closing_publishes_the_last_step_and_a_rank_that_restarts_goes_on(
    connect: Connect, job: Job
) -> None:
    """However long the interval. Nothing is called again, nor reported as another process."""
    with job.start(connect(), interval=1000) as rank:
        rank.wait_for({0: 0})
        assert repr(rank) == "<FleetStep 'kineto_step_tracker', rank 0 of 2>"
        rank.train(3)
    job.close()
    assert repr(rank) == "<FleetStep 'kineto_step_tracker', rank 0 of 2, closed>"
    assert job.calls == [1, 2, 3]
    assert Board(connect(), 2, PREFIX).read()[0].step == 3
    rank.train()
    assert rank.current_step() == 4
    again = job.start(connect())
    again.train(2)
    again.wait_for({0: 2})
    assert again.current_step() == 3
    again.train(2)
    wait_until(lambda: job.calls == [1, 2, 3, 4])
    assert job.log.messages == []


def test_on_step_may_close(job: Job) -> None:
    """What it has risen to still runs."""
    store, calls = HashStore(), list[int]()

    def on_step(step: int) -> None:
        calls.append(step)
        rank.close()

    rank = job.start(store, on_step=on_step, every=2)
    rank.train(7)
    wait_until(rank.has_ended)
    assert calls == [2, 4, 6]
    assert job.log.messages == []
    assert Board(store, 2, PREFIX).read()[0].step == 7


def test_closing_warns_of_nothing(job: Job) -> None:
    store = ScriptedStore(HashStore())
    rank = job.start(store, interval=1000)
    rank.wait_for({0: 0})
    store.before = fail
    job.close()
    assert job.log.messages == []


def test_a_store_that_always_fails_is_reported_once(job: Job) -> None:
    """And again once it has answered."""
    store = ScriptedStore(HashStore(), before=fail)
    with reported(f"rank 0 {TROUBLE}: operation 0, on clone, fails on purpose"):
        rank = job.start(store)
        wait_until(lambda: len(store.operations) >= 5)
    assert rank.says() == {}
    assert rank.current_step() == rank.skew() == 0
    assert rank.stragglers() == [0, 1]
    rank.train(3)
    store.before = lambda number, key: None
    wait_until(lambda: job.calls == [1, 2, 3] and len(job.log.messages) == 2)
    assert job.log.messages[1] == f"rank 0 {AGAIN}"
    with reported(f"rank 0 {TROUBLE}"):
        store.before = fail


def test_a_tracker_that_raises_is_trouble_and_no_more(job: Job) -> None:
    tracker = SimpleNamespace(current_step=lambda: 0)
    job.start(HashStore(), tracker=tracker)
    with reported(f"rank 0 {TROUBLE}: StopIteration"):
        tracker.current_step = lambda: next(iter(()))
    tracker.current_step = lambda: 2
    wait_until(lambda: job.calls == [1, 2])


def test_it_is_tried_less_and_less_often_however_often_one_asks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_LONGEST_PAUSE", 0.08)
    tries: list[float] = []

    def fault(number: int, key: str) -> None:
        tries.append(time.monotonic())
        fail(number, key)

    rank = job.start(ScriptedStore(HashStore(), before=fault))
    # The last would come after minutes if there were no longest pause.
    wait_until(lambda: rank.steps() == {} and len(tries) >= 15)
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    least = [0.01, 0.02, 0.04, *[0.08] * 11]
    assert all(pause >= lower for pause, lower in zip(pauses, least, strict=False)), pauses


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("effect", ["before", "after"])
@pytest.mark.parametrize("which", range(20))
def test_whichever_operation_fails_each_multiple_runs_once(
    job: Job, which: int, effect: str, every: int
) -> None:
    """Before or after it took effect. At each operation both ranks make a step, up to a last.

    Warnings are errors here, which end nothing either.
    """
    last, inner = 12, HashStore()

    def fault(number: int, key: str) -> None:
        for rank in job.ranks:
            rank.train(rank.tracker.current_step() < last)
        if number == which:
            fail(number, key)

    job.start(inner, 1, every=every, interval=0.001).wait_for({1: 0})
    store = ScriptedStore(inner, **{effect: fault})
    job.start(store, every=every, interval=0.001)
    wait_until(lambda: len(store.operations) > which + 20 and len(job.calls) >= last // every)
    job.close()
    assert sorted(job.calls) == list(range(every, last + 1, every))
    assert [job.logged(text) for text in (TROUBLE, AGAIN, "")] == [1, 1, 2]


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_a_child_it_is_closed_and_nothing_waits(connect: Connect, job: Job) -> None:
    """Not even for its lock, which another thread held at the fork, as its own does for moments."""
    rank = job.start(connect())
    rank.train(3)
    rank.wait_for({0: 3})
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with rank._changed:
            held.set()
            forked.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(int(LONG))
        status = 1
        try:
            rank.train(2)
            assert rank.says() == {0: 3}
            assert rank.current_step() == 5
            assert rank.skew() == 0
            assert rank.stragglers() == [1]
            assert repr(rank).endswith(", closed>")
            rank.close()
            rank.close()
            status = 0
        finally:
            os._exit(status)
    forked.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    rank.train()
    rank.wait_for({0: 4})
    wait_until(lambda: job.calls == [1, 2, 3, 4])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("error", "status"),
    [(None, 0), (ValueError(), 1), (SystemExit(), 0), (SystemExit(3), 3), (SystemExit("no"), 1)],
)
def test_a_child_that_its_callback_makes_does_not_go_on_in_its_place(
    job: Job, tmp_path: Path, error: BaseException | None, status: int
) -> None:
    file = tmp_path / "calls"
    children: list[int] = []

    def on_step(step: int) -> None:
        with file.open("a") as calls:
            calls.write(f"{step} ")
        if step == 2:
            children.append(os.fork())
            if children[0] == 0 and error is not None:
                raise error

    rank = job.start(FileStore(str(tmp_path / "store")), on_step=on_step)
    rank.train(5)
    wait_until(lambda: children)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == status
    wait_until(lambda: file.read_text() == "1 2 3 4 5 ")


def test_once_closed_it_keeps_no_store_alive(job: Job) -> None:
    """Or the next process group would find the host of the last one at its port."""
    store = HashStore()
    rank = job.start(store)
    rank.train()
    wait_until(lambda: job.calls == [1])
    kept = weakref.ref(store)
    rank.close()
    wait_until(rank.has_ended)
    del store
    assert kept() is None


@pytest.mark.filterwarnings("ignore:kineto_step_tracker.fleet:RuntimeWarning")
def test_a_handler_that_fails_or_asks_for_the_step_does_not_end_it(job: Job) -> None:
    store = ScriptedStore(HashStore())
    rank = job.start(store)
    asked: list[int] = []

    def ask(record: logging.LogRecord) -> bool:
        asked.append(rank.current_step())
        raise ValueError("on purpose")

    logger = logging.getLogger("kineto_step_tracker.fleet")
    logger.addFilter(ask)
    try:
        store.before = fail
        wait_until(lambda: asked)
        store.before = lambda number, key: None
        rank.train(3)
        wait_until(lambda: job.calls == [1, 2, 3])
    finally:
        logger.removeFilter(ask)


def test_what_was_closed_in_a_hurry_is_waited_for_at_the_end(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its thread would be in C++ while the process ends, which aborts that."""
    answer = threading.Event()
    rank = job.start(ScriptedStore(HashStore(), before=lambda number, key: answer.wait()))
    ended: list[object] = []
    monkeypatch.setattr("atexit.unregister", ended.append)
    rank.close(0)
    assert ended == []
    answer.set()
    rank.close(LONG)
    assert ended == [rank.close]


def test_a_callback_that_may_be_cut_off_is_named(job: Job) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    called: list[str] = []

    def on_step(step: int) -> None:
        called.append(repr(rank))
        begun.set()
        goes_on.wait()

    rank = job.start(HashStore(), on_step=on_step)
    rank.train()
    begun.wait()
    with reported("on_step(1) is still running, and is cut off if the process ends now"):
        rank.close(0.1)
    goes_on.set()
    rank.close(LONG)
    assert rank.has_ended()
    assert called == ["<FleetStep 'kineto_step_tracker', rank 0 of 2>"]
