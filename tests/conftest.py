"""What several test files share: threads started together, and a scheduler made impatient."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from kineto_step_tracker import KinetoStepTracker, backend


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


def repetitions(native: int) -> int:
    """How often to repeat under load: an atomic operation costs some 500 times more on portable."""
    return native if backend == "native" else max(1, native // 200)


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
