"""A connection that does not wait for ever: stalls, a host that is gone, the end of the process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from kineto_step_tracker.fleet import connection
from kineto_step_tracker.fleet.board import Board
from kineto_step_tracker.fleet.connection import Connection

from .stores import AGAIN, LONG, PREFIX, TROUBLE, Connect, Job, Proxy, logged, reported, wait_until


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.3)


def test_the_timeout_of_the_store_is_left_alone(connect: Connect, job: Job) -> None:
    store = connect()
    store.set_timeout(timedelta(seconds=77))
    rank = job.start(PrefixStore("a", store))
    wait_until(lambda: rank.says() == {0: 0})
    assert store.timeout == timedelta(seconds=77)  # type: ignore[attr-defined]


def test_it_has_the_prefixes_of_the_store(connect: Connect) -> None:
    Connection(PrefixStore("a", PrefixStore("b", connect()))).store.set("key", "value")
    assert PrefixStore("b/a", connect()).get("key") == b"value"


@pytest.mark.usefixtures("impatient")
def test_every_operation_is_bounded_and_every_one_fails_once_it_is_ended(proxy: Proxy) -> None:
    store = proxy.connect()
    operations = {
        "compare_set": Board.form,
        "check, multi_get": Board.read,
    }
    boards = {name: Board(store, 1, PREFIX) for name in operations}
    for board in boards.values():
        board.read()
    proxy.stall()
    for name, board in boards.items():
        begin = time.monotonic()
        with pytest.raises(RuntimeError):
            operations[name](board)
        assert 0.2 < time.monotonic() - begin < LONG / 2, name


def test_who_waits_for_an_answer_is_let_go(proxy: Proxy) -> None:
    """So closing ends the thread however long its patience would last."""
    board = Board(proxy.connect(), 1, PREFIX)
    proxy.stall()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            board.form()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    board.end()
    thread.join(LONG)
    assert len(errors) == 1


def test_closing_does_not_wait_for_a_connection_that_stalls(
    proxy: Proxy, job: Job, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 1000.0)
    rank = job.start(proxy.connect())
    wait_until(lambda: rank.says() == {0: 0})
    proxy.stall()
    # By then its thread waits for an answer.
    wait_until(lambda: rank.age(0) > 0.2)
    begin = time.monotonic()
    rank.fleet.close(1)
    assert rank.has_ended()
    assert time.monotonic() - begin < LONG / 2
    assert log.messages == []


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
def test_a_stall_is_reported_in_time_and_nothing_is_lost(
    proxy: Proxy, job: Job, log: pytest.LogCaptureFixture
) -> None:
    ranks = [job.start(proxy.connect(), rank) for rank in range(2)]
    ranks[0].train(3)
    wait_until(lambda: ranks[0].says() == {0: 3, 1: 0})
    begin = time.monotonic()
    with reported(TROUBLE, times=2):
        proxy.stall()
        ranks[0].train(1000)
    assert time.monotonic() - begin < LONG / 2
    assert ranks[0].fleet.current_step() == 1003
    before = ranks[0].age(1)
    wait_until(lambda: ranks[0].age(1) > before + 0.1)
    assert ranks[0].says() == {0: 3, 1: 0}
    proxy.go_on()
    wait_until(lambda: ranks[1].says() == {0: 1003, 1: 0})
    wait_until(lambda: len(job.calls) == 1003 and logged(log, AGAIN) == 2)
    job.close()
    assert job.calls == list(range(1, 1004))


@pytest.mark.usefixtures("impatient")
def test_what_comes_late_is_no_answer_to_another_question(proxy: Proxy, job: Job) -> None:
    """A callback that asks for the steps gets no answer in time; it comes when that has ended."""
    calls: list[int] = []

    def on_step(step: int) -> None:
        calls.append(step)
        if step == 10:
            proxy.stall()
            rank.fleet.steps()
            proxy.go_on()

    rank = job.start(proxy.connect(), on_step=on_step, world_size=1, every=5)
    wait_until(lambda: rank.says() == {0: 0})
    rank.train(13)
    wait_until(lambda: calls == [5, 10])
    for step in (15, 18, 20, 25):
        rank.train(step - rank.tracker.current_step())
        wait_until(lambda: rank.says() == {0: step})  # noqa: B023
    job.close()
    assert calls == [5, 10, 15, 20, 25]


@pytest.mark.usefixtures("impatient")
def test_a_host_that_is_gone_for_good(proxy: Proxy, job: Job) -> None:
    rank = job.start(proxy.connect())
    rank.train()
    wait_until(lambda: job.calls == [1] and rank.says() == {0: 1})
    with reported(f"rank 0 {TROUBLE}"):
        proxy.end()
    rank.train(1000)
    before = rank.age(0)
    wait_until(lambda: rank.age(0) > before + 0.1)
    rank.fleet.close()
    assert rank.has_ended()
    assert rank.fleet.current_step() == 1001
    assert job.calls == [1]


@pytest.mark.usefixtures("impatient")
def test_a_host_that_restarts_with_nothing(
    proxy: Proxy, job: Job, log: pytest.LogCaptureFixture
) -> None:
    """What it has forgotten is not called again."""
    ranks = [job.start(proxy.connect(), rank) for rank in range(2)]
    ranks[0].train(3)
    wait_until(lambda: ranks[1].says() == {0: 3, 1: 0} and job.calls == [1, 2, 3])
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with reported(TROUBLE, times=2):
        proxy.move(host.port)
    wait_until(lambda: logged(log, AGAIN) == 2)
    for rank in ranks:
        rank.train(2)
    for rank in ranks:
        wait_until(lambda: rank.says() == {0: 5, 1: 2})  # noqa: B023
    wait_until(lambda: 5 in job.calls)
    job.close()
    assert job.calls == [1, 2, 3, 4, 5]


def run(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", program, *map(str, arguments)],
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
        if monotonic() - self.begin > 10:
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
    """One port each: stalls; stalls, and goes on at the end; is gone; and both of the stalls while
    a new connection is made."""
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    proxies = [Proxy(host.port) for _ in range(5)]
    _, goes_on, is_gone, stalls_anew, goes_on_anew = proxies
    anew = (stalls_anew, goes_on_anew)
    ports = (f"{proxy.port}:{0.2 if proxy in anew else 5.0}" for proxy in proxies)
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
        goes_on_anew.go_on()
        statuses = process.stdout.read()
    for proxy in proxies:
        proxy.end()
    assert statuses == "[0, 0, 0, 0, 0]\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_the_end_of_the_process_publishes_the_last_step(tmp_path: Path) -> None:
    """Not the end of its child, which does not wait for a lock that was held at the fork either."""
    program = """
import os, sys, threading
from torch.distributed import FileStore
from kineto_step_tracker import StepTracker
from kineto_step_tracker.fleet import FleetStep
tracker = StepTracker()
fleet = FleetStep(FileStore(sys.argv[1]), tracker=tracker, rank=0, world_size=2, interval=1000,
                  on_step=lambda step: print(step))
while not fleet.steps():
    pass
held, forked = threading.Event(), threading.Event()

def hold():
    with fleet._changed:
        held.set()
        forked.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
forked.set()
if child:
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
for _ in range(3):
    tracker.increment_step("SGD#1")
"""
    path = str(tmp_path / "store")
    process = run(program, path)
    assert process.communicate(timeout=60) == ("1\n2\n3\n", "")
    assert process.returncode == 0
    assert Board(FileStore(path), 2, PREFIX).read()[0].step == 3
