"""PyTorch and the tracker as new for every test. Imports PyTorch only where it is installed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


def reset() -> None:
    """Not installed, no optimizer alive, both trackers at step 0."""
    from torch.autograd import profiler

    from kineto_step_tracker import KinetoStepTracker, pytorch

    pytorch.uninstall()
    if pytorch._names:
        # An optimizer left over by a test that failed, or in a cycle, would keep its name.
        gc.collect()
    profiler.KinetoStepTracker._step_dict.clear()
    profiler.KinetoStepTracker._current_step = 0
    KinetoStepTracker.reset()


@pytest.fixture(autouse=True)
def as_new() -> Iterator[None]:
    """Everything as new before each test, and the tracker out of PyTorch after it."""
    from kineto_step_tracker import pytorch

    reset()
    yield
    pytorch.uninstall()


@pytest.fixture
def kineto(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stand-in for Kineto's ``step()``: how many calls of it came before, for every call."""
    from torch.autograd import profiler

    calls: list[int] = []
    monkeypatch.setattr(profiler, "_kineto_step", lambda: calls.append(len(calls)))
    return calls
