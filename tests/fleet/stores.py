"""A job whose ranks are all in one process, a store that fails on purpose, one that stalls.

Imports PyTorch.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from torch._C._distributed_c10d import Store, TCPStore

from kineto_step_tracker import StepTracker
from kineto_step_tracker.fleet import FleetStep
from kineto_step_tracker.fleet.board import Board

# Far beyond what anything here takes, even on a machine that is busy with something else.
LONG = 60.0
PREFIX = "kineto_step_tracker"
TROUBLE = "cannot publish its step in the job's store, and tries again"
AGAIN = "reaches the job's store again"

Connect = Callable[[], Store]
_Answer = TypeVar("_Answer")


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as it holds; fail if that takes too long."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "what the test waits for has not come"
        time.sleep(0.002)


@contextmanager
def reported(text: str, times: int = 1) -> Iterator[None]:
    """What happens inside warns so many times, and of nothing else."""
    with pytest.warns(RuntimeWarning, match=re.escape(text)) as caught:  # noqa: PT031
        yield
        wait_until(lambda: len(caught) >= times)
    assert len(caught) == times


def host() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def client(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


def job_step(store: Store) -> int:
    record = Board(store, 1, PREFIX).store.compare_set("job/step", "", "").decode()
    return int(record.partition(" ")[0] or 0)


class Rank(FleetStep):
    """A rank with a tracker of its own, and what its callback was called with."""

    def __init__(
        self, job: Job, store: Store | None, rank: int | None, start: int, more: Any
    ) -> None:
        self.tracker = StepTracker(start=start)
        self.calls: list[int] = []

        def on_step(step: int) -> None:
            self.calls.append(step)
            job.calls.append(step)

        given = {"tracker": self.tracker, "world_size": 2, "interval": 0.01, "on_step": on_step}
        super().__init__(store, rank=rank, **given | more)

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.tracker.increment_step("SGD#1")

    def says(self) -> dict[int, int]:
        return {rank: step for rank, (step, _) in self.steps().items()}

    def wait_for(self, steps: dict[int, int]) -> None:
        wait_until(lambda: self.says() == steps)

    def wait_until_age_grows(self, rank: int) -> None:
        before = self.steps()[rank].age
        wait_until(lambda: self.steps()[rank].age > before + 0.1)

    def has_ended(self) -> bool:
        return not self._thread.is_alive()


class Job:
    """Starts ranks. Whatever the callback of any of them was called with is in ``calls``."""

    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        self.log = log
        self.ranks: list[Rank] = []
        self.calls: list[int] = []

    def start(
        self, store: Store | None, rank: int | None = 0, *, start: int = 0, **more: Any
    ) -> Rank:
        self.ranks.append(Rank(self, store, rank, start, more))
        return self.ranks[-1]

    def logged(self, text: str) -> int:
        return sum(text in message for message in self.log.messages)

    def close(self) -> None:
        """End every rank, however long its thread may take."""
        for rank in self.ranks:
            rank.close(LONG)
            assert rank.has_ended()


class ScriptedStore(Store):
    """Hands every operation to another store, if its script lets it. It is its own clone."""

    def __init__(
        self,
        inner: Store,
        before: Callable[[int, str], object] = lambda number, key: None,
        after: Callable[[int, str], object] = lambda number, key: None,
    ) -> None:
        super().__init__()
        self._inner = inner
        self.before = before
        self._after = after
        self.operations: list[str] = []
        self.threads: set[threading.Thread] = set()

    def clone(self) -> ScriptedStore:
        return self._run("clone", lambda: self)

    def set(self, key: str, value: str) -> None:
        self._run(key, lambda: self._inner.set(key, value))

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        return self._run(key, lambda: self._inner.compare_set(key, expected_value, desired_value))

    def check(self, keys: list[str]) -> bool:
        return self._run("check", lambda: self._inner.check(keys))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._run("multi_get", lambda: self._inner.multi_get(keys))

    def _run(self, key: str, operation: Callable[[], _Answer]) -> _Answer:
        number = len(self.operations)
        self.operations.append(key)
        self.threads.add(threading.current_thread())
        self.before(number, key)
        answer = operation()
        self._after(number, key)
        return answer


def fail(number: int, key: str) -> None:
    """As PyTorch does, whose errors are RuntimeErrors too."""
    raise RuntimeError(f"operation {number}, on {key}, fails on purpose")


class Proxy:
    """Stands between TCPStores and their host, which it has. What it holds back is not lost."""

    def __init__(self) -> None:
        self.host = host()
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self) -> TCPStore:
        return client(self.port)

    def accepted(self) -> int:
        return len(self._sockets) // 2

    def stall(self) -> None:
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Break every connection; new ones are welcome, and go to what is the host by then."""
        for each in self._sockets:
            _break(each)

    def end(self) -> None:
        """Break every connection, and refuse new ones."""
        _break(self._listener)
        self.cut()
        self.go_on()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                onward = socket.create_connection(("127.0.0.1", self.host.port))
                self._sockets += (accepted, onward)
                for ends in ((accepted, onward), (onward, accepted)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flowing.wait()
                sink.sendall(data)
            self._flowing.wait()
            sink.shutdown(socket.SHUT_WR)


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
