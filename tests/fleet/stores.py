"""A job whose ranks are all in one process, stores that fail on purpose, a connection that stalls.

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
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from torch._C._distributed_c10d import Store, TCPStore

from kineto_step_tracker import StepTracker
from kineto_step_tracker.fleet import FleetStep
from kineto_step_tracker.fleet.board import Board

LONG = 20.0
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


def logged(log: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in message for message in log.messages)


def job_step(store: Store, prefix: str = PREFIX) -> int:
    record = Board(store, 1, prefix).store.compare_set("job/step", "", "").decode()
    return int(record.partition(" ")[0] or 0)


class Rank:
    """A rank of a job, and what its callback was called with."""

    def __init__(self, fleet: FleetStep, tracker: StepTracker, calls: list[int]) -> None:
        self.fleet = fleet
        self.tracker = tracker
        self.calls = calls

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.tracker.increment_step("SGD#1")

    def says(self) -> dict[int, int]:
        return {rank: step for rank, (step, _) in self.fleet.steps().items()}

    def age(self, rank: int) -> float:
        return self.fleet.steps()[rank].age

    def has_ended(self) -> bool:
        return not self.fleet._thread.is_alive()


class Job:
    """Starts ranks. Whatever the callback of any of them was called with is in ``calls``."""

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.calls: list[int] = []

    def start(
        self, store: Store | None, rank: int | None = 0, *, start: int = 0, **more: Any
    ) -> Rank:
        calls: list[int] = []

        def on_step(step: int) -> None:
            calls.append(step)
            self.calls.append(step)

        tracker = StepTracker(start=start)
        chosen: dict[str, Any] = {
            "tracker": tracker,
            "world_size": 2,
            "interval": 0.01,
            "on_step": on_step,
        }
        fleet = FleetStep(store, rank=rank, **chosen | more)
        self.ranks.append(Rank(fleet, tracker, calls))
        return self.ranks[-1]

    def close(self) -> None:
        """End every rank, however long its thread may take."""
        for rank in self.ranks:
            rank.fleet.close(LONG)
            assert rank.has_ended()


@dataclass
class Script:
    """What befalls the operations of a store and of all its clones, and what they have been."""

    before: Callable[[int, str], object] = lambda number, key: None
    after: Callable[[int, str], object] = lambda number, key: None
    operations: list[str] = field(default_factory=list)
    threads: set[threading.Thread] = field(default_factory=set)
    # PyTorch calls methods in Python only as long as something in Python holds the store.
    stores: list[Store] = field(default_factory=list)

    def run(self, key: str, operation: Callable[[], _Answer]) -> _Answer:
        number = len(self.operations)
        self.operations.append(key)
        self.threads.add(threading.current_thread())
        self.before(number, key)
        answer = operation()
        self.after(number, key)
        return answer


class ScriptedStore(Store):
    """Hands every operation to another store, if its script lets it."""

    def __init__(self, inner: Store, script: Script) -> None:
        super().__init__()
        self._inner = inner
        self._script = script

    def clone(self) -> ScriptedStore:
        clone = self._script.run("clone", lambda: ScriptedStore(self._inner, self._script))
        self._script.stores.append(clone)
        return clone

    def set(self, key: str, value: str) -> None:
        self._script.run(key, lambda: self._inner.set(key, value))

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        return self._script.run(
            key, lambda: self._inner.compare_set(key, expected_value, desired_value)
        )

    def check(self, keys: list[str]) -> bool:
        return self._script.run("check", lambda: self._inner.check(keys))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._script.run("multi_get", lambda: self._inner.multi_get(keys))


def fail(number: int, key: str) -> None:
    """As PyTorch does, whose errors are RuntimeErrors too."""
    raise RuntimeError(f"operation {number}, on {key}, fails on purpose")


def fail_at(which: int) -> Callable[[int, str], None]:
    """Let one operation fail, by its number."""
    return lambda number, key: fail(number, key) if number == which else None


class Proxy:
    """Stands between a TCPStore and its host. What it holds back is not lost."""

    def __init__(self, port: int) -> None:
        self._host = port
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self) -> TCPStore:
        return TCPStore("127.0.0.1", self.port, is_master=False, wait_for_workers=False)

    def accepted(self) -> int:
        return len(self._sockets) // 2

    def stall(self) -> None:
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    def move(self, port: int) -> None:
        """Break every connection, and lead new ones to another host."""
        self._host = port
        self._break(*self._sockets)

    def end(self) -> None:
        """Break every connection, and refuse new ones."""
        self._break(self._listener, *self._sockets)
        self._flowing.set()

    def _break(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host = socket.create_connection(("127.0.0.1", self._host))
                self._sockets += (client, host)
                for ends in ((client, host), (host, client)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flowing.wait()
                sink.sendall(data)
            self._flowing.wait()
            sink.shutdown(socket.SHUT_WR)
