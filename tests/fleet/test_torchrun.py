"""Ranks that are processes: started by torchrun, and alone where some of them have to die."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from kineto_step_tracker.fleet.board import Board

from .rank import lone
from .stores import LONG, Proxy, host, wait_until

RANK = Path(__file__).with_name("rank.py")
# To import PyTorch takes a rank longer than its part in a test, so its ranks are forked from a
# process that has.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([lone.__module__, "torch._dynamo"])

Note = dict[str, Any]


def read(lines: Iterable[str]) -> Iterator[Note]:
    """Yield the notes, but for one that is in the making, or that a SIGKILL cut off."""
    for line in lines:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def notes_of(folder: Path) -> list[Note]:
    files = folder.glob("*.jsonl")
    return [note for file in files for note in read(file.read_text().splitlines())]


def ran(notes: list[Note], job: str) -> list[int]:
    """Return what the callback was run for, by whichever rank."""
    return sorted(note["step"] for note in notes if note["what"] == "ran" and note["job"] == job)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def environment(**more: object) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(more[name]) for name in more}}


@pytest.fixture(scope="module", params=[2, 4, 8])
def size(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def notes(size: int, tmp_path_factory: pytest.TempPathFactory) -> list[Note]:
    """What the ranks noted that one start of torchrun ran, in three jobs and a fourth."""
    folder = tmp_path_factory.mktemp(f"torchrun-{size}")
    agent = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node", str(size), str(RANK), str(folder)),
        ],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, errors = agent.communicate(timeout=2 * LONG)
    finally:
        # It ends its ranks then; after a SIGKILL it could not.
        agent.terminate()
        agent.wait(LONG)
        pids = [note["pid"] for note in notes_of(folder) if note["what"] == "begin"]
        left = [pid for pid in pids if is_alive(pid)]
        for pid in left:
            kill(pid)
    assert agent.returncode == 0, errors
    assert len(pids) == size
    assert left == []
    # Neither trouble with the store nor a rank that is there twice.
    assert "kineto_step_tracker" not in errors
    assert "logged:" not in errors
    return notes_of(folder)


def halves(size: int) -> dict[str, list[int]]:
    """How often each rank of each job trains until half time, as rank.py has it."""
    return {
        "lockstep": [10] * size,
        "free": [5 * (1 + rank) for rank in range(size)],
        "even": [6] * (size // 2),
        "odd": [10] * (size // 2),
    }


@pytest.mark.parametrize("half", [1, 2])
@pytest.mark.parametrize("job", ["lockstep", "free", "even", "odd"])
def test_every_rank_sees_the_same_step_of_its_job(
    notes: list[Note], size: int, job: str, half: int
) -> None:
    steps = [half * iterations for iterations in halves(size)[job]]
    views = [
        note
        for note in notes
        if note["what"] == "half" and (note["job"], note["half"]) == (job, half)
    ]
    assert sorted(view["rank"] for view in views) == list(range(len(steps)))
    for view in views:
        assert view["step"] == max(steps)
        assert view["steps"] == {str(rank): step for rank, step in enumerate(steps)}
        assert view["skew"] == max(steps) - min(steps)
        assert view["stragglers"] == [rank for rank, step in enumerate(steps) if step < max(steps)]


@pytest.mark.parametrize(("job", "every"), [("lockstep", 1), ("free", 1), ("even", 3), ("odd", 4)])
def test_the_callback_runs_once_for_each_multiple_on_all_ranks_together(
    notes: list[Note], size: int, job: str, every: int
) -> None:
    last = 2 * max(halves(size)[job])
    assert ran(notes, job) == list(range(every, last + 1, every))


def test_no_rank_is_ever_ahead_of_what_was_trained(notes: list[Note]) -> None:
    """The ranks' clocks are the machine's, so what they noted can be put in order."""
    notes = sorted(notes, key=lambda note: float(note["at"]))
    trained: Counter[str] = Counter()
    looks = 0
    for note in notes:
        if note["what"] == "step":
            trained[note["job"]] = max(trained[note["job"]], note["step"])
        elif note["what"] == "saw":
            looks += 1
            assert note["own"] <= note["step"] <= trained[note["job"]]
    assert looks > 10


def test_ranks_that_wait_for_each_other_in_each_iteration_are_never_a_step_apart(
    notes: list[Note], size: int
) -> None:
    looks = [note for note in notes if note["what"] == "saw" and note["job"] == "lockstep"]
    assert len(looks) == 6 * size
    # The others cannot have ended an iteration that this rank had not begun when it looked.
    assert all(look["step"] == look["own"] for look in looks)


class Ranks:
    """Ranks with no torchrun that ends them all when one dies; those left are killed on exit."""

    def __init__(self, folder: Path, size: int, **more: object) -> None:
        self._folder = folder
        self._environment = environment(WORLD_SIZE=size, **more)
        self._processes: list[ForkServerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def start(self, rank: int, *arguments: object) -> ForkServerProcess:
        process = FORKING.Process(
            target=lone,
            args=(
                [str(self._folder), *map(str, arguments)],
                {**self._environment, "RANK": str(rank)},
                self._errors(rank),
            ),
        )
        process.start()
        self._processes.append(process)
        return process

    def notes(self, rank: int, what: str) -> list[Note]:
        return [note for note in self._from_the_end(rank) if note["what"] == what][::-1]

    def last(self, rank: int, what: str) -> Note | None:
        return next((note for note in self._from_the_end(rank) if note["what"] == what), None)

    def step(self, rank: int) -> int:
        note = self.last(rank, "step")
        return int(note["step"]) if note else 0

    def sees(self, rank: int, condition: Callable[[Note], bool]) -> bool:
        """Return whether what a rank last saw of the others is as the condition has it."""
        note = self.last(rank, "seen")
        return note is not None and condition(note)

    def ran(self) -> list[int]:
        return ran(notes_of(self._folder), "alone")

    def errors(self, rank: int) -> str:
        return self._errors(rank).read_text()

    def has_reported(self, rank: int, trouble: str) -> bool:
        return trouble in self.errors(rank)

    def signal(self, name: str) -> None:
        (self._folder / name).touch()

    def wait_for_steps(self, rank: int, number: int) -> None:
        """Wait until a rank has trained on for so many iterations."""
        goal = self.step(rank) + number
        wait_until(lambda: self.step(rank) >= goal)

    def wait_until_all_train(self, size: int) -> None:
        wait_until(lambda: all(self.step(rank) >= 50 for rank in range(size)))
        wait_until(lambda: len(self.ran()) >= 3)

    def longest_iteration(self, rank: int, since: float) -> float:
        times = [float(note["at"]) for note in self.notes(rank, "step") if note["at"] >= since]
        return max(after - before for before, after in itertools.pairwise(times))

    def _from_the_end(self, rank: int) -> Iterator[Note]:
        file = self._folder / f"{rank}.jsonl"
        if file.exists():
            yield from read(reversed(file.read_text().splitlines()))

    def _errors(self, rank: int) -> Path:
        return self._folder / f"{rank}.err"


def ended(process: ForkServerProcess) -> int | None:
    """Wait for its end; return its exit status, or the signal that ended it, below 0."""
    process.join(LONG)
    return process.exitcode


def test_ranks_are_killed_and_restarted(tmp_path: Path) -> None:
    store = host()
    board = Board(store, 3, "alone")
    arguments = ("--store", store.port, "--every", 10)
    with Ranks(tmp_path, 3) as ranks:
        # Ahead of the others, which wait for it, it wins each rise, and dies of that to 50.
        leader = ranks.start(1, *arguments, "--dies-at", 50, "--holds-at", 55)
        first = ranks.start(0, *arguments, "--holds-at", 25)
        third = ranks.start(2, *arguments, "--holds-at", 25)
        assert ended(leader) == -signal.SIGKILL
        wait_until(lambda: ranks.ran() == [10, 20, 30, 40])
        died_at = board.read()[1].step
        assert 50 <= died_at <= 55
        ranks.signal("past-25")
        for rank in (0, 2):
            ranks.wait_for_steps(rank, 50)
            wait_until(
                partial(ranks.sees, rank, lambda it: 1 in it["stragglers"] and it["ages"]["1"] > 1)
            )
            views = [it for it in ranks.notes(rank, "seen") if it["steps"].get("1") == died_at]
            ages = [view["ages"]["1"] for view in views]
            assert ages == sorted(ages)

        reborn = ranks.start(1, *arguments, "--pause", 0.001, "--holds-at", 20)
        wait_until(lambda: ranks.sees(0, lambda it: it["steps"]["1"] == 20))
        ranks.signal("past-20")
        # It overtakes the others: from there on it has its share in the rises again.
        wait_until(lambda: ranks.sees(0, lambda it: it["steps"]["1"] > it["steps"]["0"] + 50))
        assert ranks.sees(0, lambda it: 1 not in it["stragglers"])

        third.kill()
        third.join()
        ranks.wait_for_steps(0, 50)
        wait_until(lambda: ranks.sees(0, lambda it: it["ages"]["2"] > 1))
        ranks.signal("stop")
        assert ended(first) == 0
        assert ended(reborn) == 0
        for rank in (0, 1, 2):
            assert "logged:" not in ranks.errors(rank)
        ends = {rank: ranks.notes(rank, "end")[-1]["step"] for rank in (0, 1)}
        assert {rank: board.read()[rank].step for rank in (0, 1)} == ends
        last_multiple = max(ends.values()) // 10 * 10
        done = ranks.ran()
        assert len(done) == len(set(done))
        missing = sorted(set(range(10, last_multiple + 1, 10)) - set(done))
        assert missing[0] == 50
        # At most one more, if the third was killed on the way to its callback.
        assert len(missing) <= 2


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_the_others_train_to_their_end_when_the_host_of_the_store_is_killed(
    tmp_path: Path,
) -> None:
    with Ranks(tmp_path, 3, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()) as ranks:
        first, *others = (ranks.start(rank, "--every", 10, "--unclosed") for rank in range(3))
        ranks.wait_until_all_train(3)
        first.kill()
        first.join()
        killed_at = time.monotonic()
        for rank in (1, 2):
            ranks.wait_for_steps(rank, 300)
            wait_until(partial(ranks.has_reported, rank, "cannot publish"))
        ranks.signal("stop")
        for other in others:
            assert ended(other) == 0
        for rank in (1, 2):
            assert ranks.longest_iteration(rank, killed_at) < 4
            errors = ranks.errors(rank)
            assert errors.count("logged:") == 1
            assert errors.count("RuntimeWarning: kineto_step_tracker.fleet: ") == 1
            assert "Traceback" not in errors
        done = ranks.ran()
        # One rise may have been won and lost.
        assert len(done) == len(set(done))
        assert len(set(range(10, done[-1] + 1, 10)) - set(done)) <= 1


def is_past(board: Board, steps: list[int]) -> bool:
    return all(board.read()[rank].step > step for rank, step in enumerate(steps))


def test_training_does_not_wait_for_a_store_that_stalls_or_is_cut_off(
    tmp_path: Path, proxy: Proxy
) -> None:
    board = Board(proxy.host, 2, "alone")
    with Ranks(tmp_path, 2) as ranks:
        processes = [ranks.start(rank, "--store", proxy.port, "--every", 10) for rank in range(2)]
        ranks.wait_until_all_train(2)
        stalled_at = time.monotonic()
        proxy.stall()
        before = [ranks.step(rank) for rank in range(2)]
        time.sleep(5)
        seen = board.read()
        after = [ranks.step(rank) for rank in range(2)]
        proxy.go_on()
        for rank in range(2):
            # Of some hundred that it has the time for.
            assert after[rank] > before[rank] + 50
            assert seen[rank].age > 4
        wait_until(lambda: is_past(board, after))
        wait_until(lambda: set(ranks.ran()) >= set(range(10, max(after), 10)))

        proxy.cut()
        cut_at = [ranks.step(rank) + 20 for rank in range(2)]
        wait_until(lambda: is_past(board, cut_at))
        ranks.signal("stop")
        for process in processes:
            assert ended(process) == 0
        ends = [ranks.notes(rank, "end")[-1]["step"] for rank in range(2)]
        assert [board.read()[rank].step for rank in range(2)] == ends
        for rank in range(2):
            assert ranks.longest_iteration(rank, stalled_at) < 4
            assert "Traceback" not in ranks.errors(rank)
            assert "cannot publish its step" in ranks.errors(rank)
        done = ranks.ran()
        if any(ranks.has_reported(rank, "cannot tell whether") for rank in range(2)):
            # The answer to a rise was cut off, and the other has raised it since.
            assert len(done) == len(set(done))
        else:
            assert done == list(range(10, max(ends) + 1, 10))
