"""What several test files share: threads started together, and a scheduler made impatient."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kineto_step_tracker import KinetoStepTracker, backend


@pytest.fixture(scope="session", autouse=True)
def gil_as_it_was() -> Iterator[None]:
    """Had a test switched the GIL on, those after it would have proved less than they say."""
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    before = enabled()
    yield
    assert enabled() == before


def run_together(*works: Callable[[], object]) -> None:
    """Run each on a thread of its own, all started at once; raise what any of them raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class PlainAtomics(ModuleType):
    """Stands in for ``atomics``, for one thread: fast, and also where that cannot be installed."""

    INT = int

    class atomic:  # noqa: N801
        def __init__(self, width: int, atype: type[int]) -> None:
            self._value = 0

        def load(self) -> int:
            return self._value

        def store(self, value: int) -> None:
            self._value = value

        def fetch_add(self, amount: int) -> int:
            self._value += amount
            return self._value - amount

        def cmpxchg_strong(self, expected: int, desired: int) -> SimpleNamespace:
            success = self._value == expected
            if success:
                self._value = desired
            return SimpleNamespace(success=success)


def repetitions(native: int, portable: int | None = None) -> int:
    """How often to repeat under load: an atomic operation costs some 500 times more on portable."""
    if backend == "native":
        return native
    return max(1, native // 200) if portable is None else portable


class Journal:
    """A callback that notes every step which is out of order and every overlap of two calls."""

    def __init__(self, start: int = 0) -> None:
        self.last = start
        self.faults: list[str] = []
        self._inside = threading.Lock()

    def __call__(self, step: int) -> None:
        if not self._inside.acquire(blocking=False):
            self.faults.append(f"{step} overlaps the one after {self.last}")
            return
        if step != self.last + 1:
            self.faults.append(f"{step} after {self.last}")
        self.last = step
        self._inside.release()

    def assert_complete(self, last: int) -> None:
        """Every step up to ``last`` was run, once, in order."""
        assert self.faults == []
        assert self.last == last


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a path short enough for Kineto's sockets, which ``tmp_path`` has not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def restless() -> Iterator[None]:
    """Let CPython switch threads as often as it can, so that races have their chance."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def process_wide() -> Iterator[type[KinetoStepTracker]]:
    """The process-wide tracker, at step 0 and without requesters, before and after the test."""
    KinetoStepTracker.reset()
    yield KinetoStepTracker
    KinetoStepTracker.reset()


@pytest.fixture
def alarm() -> Iterator[None]:
    """Put the handler of SIGALRM back, and its timer off, at the end of the test."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
