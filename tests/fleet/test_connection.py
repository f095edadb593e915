"""A connection that does not wait for ever: stalls, a host that is gone, the end of the process."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from torch._C._distributed_c10d import FileStore, PrefixStore

from kineto_step_tracker.fleet import connection
from kineto_step_tracker.fleet.board import Board
from kineto_step_tracker.fleet.connection import Connection

from .stores import (
    AGAIN,
    LONG,
    PREFIX,
    TROUBLE,
    Connect,
    Job,
    Proxy,
    host,
    reported,
    wait_until,
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.3)


def test_it_has_the_prefixes_of_the_store_and_leaves_its_timeout_alone(connect: Connect) -> None:
    store = connect()
    store.set_timeout(timedelta(seconds=77))
    Connection(PrefixStore("a", PrefixStore("b", store))).store.set("key", "value")
    assert PrefixStore("b/a", connect()).get("key") == b"value"
    assert store.timeout == timedelta(seconds=77)  # type: ignore[attr-defined]


@pytest.mark.parametrize("operation", [Board.form, Board.read])
@pytest.mark.parametrize("patience", [0.3, 1000.0])
def test_who_waits_for_an_answer_is_let_go_in_time_or_at_the_end(
    proxy: Proxy,
    operation: Callable[[Board], object],
    patience: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", patience)
    board = Board(proxy.connect(), 1, PREFIX)
    board.read()
    proxy.stall()
    failed = threading.Event()

    def wait() -> None:
        with contextlib.suppress(RuntimeError):
            operation(board)
            return
        failed.set()

    # In C++, where neither a signal nor pytest-timeout would reach the main thread.
    threading.Thread(target=wait, daemon=True).start()
    if patience > LONG:
        board.end()
    assert failed.wait(LONG)


def test_closing_does_not_wait_for_a_connection_that_stalls(
    proxy: Proxy, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 1000.0)
    rank = job.start(proxy.connect())
    rank.wait_for({0: 0})
    proxy.stall()
    # By then its thread waits for an answer.
    rank.wait_until_age_grows(0)
    rank.close(1)
    wait_until(rank.has_ended)
    assert job.log.messages == []


def test_a_connection_leaves_nothing_open(connect: Connect) -> None:
    """Every trouble makes a new one. That a socket is left open would be a warning, so an error."""
    store = connect()

    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208

    before = descriptors()
    for _ in range(5):
        own = Connection(store)
        own.store.set("key", "value")
        own.end()
        del own
    gc.collect()
    # The host closes its ends a little later.
    wait_until(lambda: descriptors() <= before)


@pytest.mark.usefixtures("impatient")
def test_a_stall_is_reported_in_time_and_nothing_is_lost(proxy: Proxy, job: Job) -> None:
    ranks = [job.start(proxy.connect(), rank) for rank in range(2)]
    ranks[0].train(3)
    ranks[0].wait_for({0: 3, 1: 0})
    with reported(TROUBLE, times=2):
        proxy.stall()
        ranks[0].train(1000)
    assert ranks[0].current_step() == 1003
    ranks[0].wait_until_age_grows(1)
    assert ranks[0].says() == {0: 3, 1: 0}
    proxy.go_on()
    ranks[1].wait_for({0: 1003, 1: 0})
    wait_until(lambda: len(job.calls) == 1003 and job.logged(AGAIN) == 2)
    job.close()
    assert job.calls == list(range(1, 1004))


@pytest.mark.usefixtures("impatient")
def test_what_comes_late_is_no_answer_to_another_question(
    proxy: Proxy, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that asks for the steps gets no answer in time; it comes when that has ended."""
    calls, ended, end = list[int](), list[Board](), Board.end

    def noted(board: Board) -> None:
        ended.append(board)
        end(board)

    # What PyTorch makes of such an answer is not the same for every operation.
    monkeypatch.setattr(Board, "end", noted)

    def on_step(step: int) -> None:
        calls.append(step)
        if step == 10:
            proxy.stall()
            rank.steps()
            proxy.go_on()

    rank = job.start(proxy.connect(), on_step=on_step, world_size=1, every=5)
    rank.wait_for({0: 0})
    rank.train(13)
    wait_until(lambda: calls == [5, 10] and len(ended) == 1)
    for step in (15, 18, 20, 25):
        rank.train(step - rank.tracker.current_step())
        rank.wait_for({0: step})
    job.close()
    assert calls == [5, 10, 15, 20, 25]


@pytest.mark.usefixtures("impatient")
def test_a_host_that_restarts_with_nothing_and_is_gone_for_good(proxy: Proxy, job: Job) -> None:
    """What it has forgotten is not called again."""
    ranks = [job.start(proxy.connect(), rank) for rank in range(2)]
    ranks[0].train(3)
    ranks[1].wait_for({0: 3, 1: 0})
    wait_until(lambda: job.calls == [1, 2, 3])
    proxy.host = host()
    with reported(TROUBLE, times=2):
        proxy.cut()
    wait_until(lambda: job.logged(AGAIN) == 2)
    for rank in ranks:
        rank.train(2)
    for rank in ranks:
        rank.wait_for({0: 5, 1: 2})
    wait_until(lambda: 5 in job.calls)
    with reported(TROUBLE, times=2):
        proxy.end()
    ranks[0].train()
    ranks[0].wait_until_age_grows(0)
    job.close()
    assert ranks[0].current_step() == 6
    assert job.calls == [1, 2, 3, 4, 5]


def run(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


ENDS = """
import os, sys, time
from torch.distributed import TCPStore
from kineto_step_tracker import StepTracker
from kineto_step_tracker.fleet import FleetStep, connection

class Late:
    # Holds up an interpreter that ends, so that a thread may come back to it from C++.
    def __del__(self, monotonic=time.monotonic, sleep=time.sleep, write=os.write, exit=os._exit):
        if monotonic() - self.begin > 30:
            exit(3)
        write(1, b"ends\\n")
        sleep(1)

children = []
for argument in sys.argv[1:]:
    port, patience = argument.split(":")
    children.append(os.fork())
    if not children[-1]:
        late = Late()
        connection.PATIENCE = float(patience)
        store = TCPStore("127.0.0.1", int(port), is_master=False, wait_for_workers=False)
        fleet = FleetStep(store, tracker=StepTracker(), rank=0, world_size=1, interval=0.01)
        while not fleet.steps():
            pass
        os.write(1, b"publishes\\n")
        os.read(0, 1)
        late.begin = time.monotonic()
        sys.exit()
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_ends_well_whatever_the_store_does() -> None:
    """One store each: stalls; stalls, and goes on at the end; is gone; and both of the stalls while
    a new connection is made."""
    proxies = [Proxy() for _ in range(5)]
    _, goes_on, is_gone, *anew = proxies
    ports = (f"{proxy.port}:{0.2 if proxy in anew else 60.0}" for proxy in proxies)
    with run(ENDS, *ports) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in proxies] == ["publishes\n"] * 5
        before = {proxy: proxy.accepted() for proxy in anew}
        for proxy in proxies:
            proxy.stall()
        wait_until(lambda: all(proxy.accepted() >= before[proxy] + 2 for proxy in anew))
        is_gone.end()
        process.stdin.close()
        assert [process.stdout.readline() for _ in proxies] == ["ends\n"] * 5
        goes_on.go_on()
        anew[1].go_on()
        statuses = process.stdout.read()
    for proxy in proxies:
        proxy.end()
    assert statuses == "[0, 0, 0, 0, 0]\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_the_end_of_the_process_publishes_the_last_step(tmp_path: Path) -> None:
    """Not the end of its child."""
    program = """
import os, sys
from torch.distributed import FileStore
from kineto_step_tracker import StepTracker
from kineto_step_tracker.fleet import FleetStep
tracker = StepTracker()
fleet = FleetStep(FileStore(sys.argv[1]), tracker=tracker, rank=0, world_size=2, interval=1000,
                  on_step=lambda step: print(step))
while not fleet.steps():
    pass
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
for _ in range(3):
    tracker.increment_step("SGD#1")
"""
    path = str(tmp_path / "store")
    process = run(program, path)
    assert process.communicate(timeout=2 * LONG) == ("1\n2\n3\n", "")
    assert process.returncode == 0
    assert Board(FileStore(path), 2, PREFIX).read()[0].step == 3
