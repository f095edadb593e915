"""The marks by which a trace says which steps it holds."""

from __future__ import annotations

import math
import time

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from torch.autograd import profiler
from torch.profiler import ProfilerActivity, profile

from kineto_step_tracker import KinetoStepTracker, drop_in, pytorch
from tests.pytorch.training import sgd


def marks(trace: profile) -> list[str]:
    names = [event.name for event in trace.events()]  # type: ignore[no-untyped-call]
    return [name for name in names if name.startswith(drop_in.MARK)]


@pytest.mark.usefixtures("kineto")
def test_each_step_of_a_trace_is_marked_with_its_number() -> None:
    pytorch.install(kineto=True)
    optimizers = sgd(), sgd()
    for optimizer in optimizers:
        optimizer.step()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.step()
    optimizers[0].step()
    assert marks(trace) == [f"KinetoStepTracker.step#{step}" for step in (2, 3, 4)]


@pytest.mark.usefixtures("kineto")
def test_only_where_kineto_is_stepped_and_the_tracker_is_installed() -> None:
    optimizer = sgd()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        with pytorch.installed(kineto=False):
            optimizer.step()
        KinetoStepTracker.increment_step("by hand")
    assert KinetoStepTracker.current_step() > 0
    assert marks(trace) == []


def test_nothing_is_annotated_while_no_trace_is_recorded(
    kineto: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytorch.install(kineto=True)
    named: list[str] = []
    monkeypatch.setattr(drop_in, "annotate", named.append)
    sgd().step()
    assert (len(kineto), named) == (1, [])


def test_a_step_is_marked_before_kineto_can_end_the_trace(
    kineto: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytorch.install(kineto=True)
    marked: list[tuple[str, int]] = []
    monkeypatch.setattr(drop_in, "is_recording", lambda: True)
    monkeypatch.setattr(drop_in, "annotate", lambda name: marked.append((name, len(kineto))))
    KinetoStepTracker.increment_step("by hand")
    assert (marked, len(kineto)) == ([("KinetoStepTracker.step#1", 0)], 1)


def test_where_pytorch_cannot_be_asked_nothing_is_marked(
    kineto: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytorch, "_HAS_CALLBACKS", "no_such_function")
    pytorch.install(kineto=True)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        sgd().step()
    assert (len(kineto), marks(trace)) == (1, [])


class Kineto:
    """Stand-in for Kineto, which takes so long for a step, and ends its trace after some looks."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float, looks: float) -> None:
        self.left = looks
        self._seconds = seconds
        patch.setattr(profiler, "_kineto_step", self._step)
        patch.setattr(drop_in, "is_recording", self._is_recording)
        patch.setattr(drop_in, "annotate", str)

    def _step(self) -> None:
        time.sleep(self._seconds)

    def _is_recording(self) -> bool:
        self.left -= 1
        return self.left > 0


def test_a_step_that_ends_the_trace_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytorch.install(kineto=True)
    monkeypatch.setattr(drop_in, "_PATIENCE", 60)
    kineto = Kineto(monkeypatch, seconds=0.001, looks=5)
    KinetoStepTracker.increment_step("by hand")
    assert kineto.left == 0


def test_other_steps_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pytorch.install(kineto=True)
    monkeypatch.setattr(drop_in, "_ENDING", 60)
    kineto = Kineto(monkeypatch, seconds=0, looks=5)
    KinetoStepTracker.increment_step("by hand")
    assert kineto.left == 4


def test_a_trace_that_goes_on_is_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pytorch.install(kineto=True)
    kineto = Kineto(monkeypatch, seconds=0.001, looks=math.inf)
    KinetoStepTracker.increment_step("by hand")
    assert kineto.left == math.inf
