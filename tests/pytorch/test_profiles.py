"""torch.profiler.profile beside optimizers, and two of them at a time."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from kineto_step_tracker import KinetoStepTracker, pytorch
from tests.pytorch.training import sgd, weights

CPU = [ProfilerActivity.CPU]


@pytest.fixture(autouse=True)
def installed() -> None:
    pytorch.install(kineto=False)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """For profile.step(), which looks every time. Kineto must not see it once it is in use."""
    monkeypatch.setattr(os, "environ", {**os.environ, "KINETO_USE_DAEMON": "1"})


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_USE_DAEMON", raising=False)


@pytest.mark.usefixtures("no_daemon")
def test_without_daemon_the_optimizer_alone_counts() -> None:
    optimizer = sgd()
    with profile(activities=CPU) as profiling:
        for iteration in range(1, 11):
            optimizer.step()
            profiling.step()
            assert KinetoStepTracker.current_step() == iteration
        assert KinetoStepTracker.step_counts() == {"ProfilerStep": 0, "SGD#1": 10}
    assert KinetoStepTracker.step_counts() == {"SGD#1": 10}


@pytest.mark.usefixtures("daemon")
def test_with_daemon_both_count_the_same_iterations() -> None:
    optimizers = sgd(), torch.optim.AdamW(weights())
    with profile(activities=CPU) as profiling:
        for iteration in range(1, 11):
            for optimizer in optimizers:
                optimizer.step()
            profiling.step()
            assert KinetoStepTracker.current_step() == iteration
        assert set(KinetoStepTracker.step_counts().values()) == {10}


@pytest.mark.usefixtures("daemon")
def test_a_profile_made_in_the_middle_counts_from_there() -> None:
    optimizer = sgd()
    for _ in range(10):
        optimizer.step()
    with profile(activities=CPU) as profiling:
        for _ in range(5):
            optimizer.step()
            profiling.step()
        assert KinetoStepTracker.step_counts() == {"SGD#1": 15, "ProfilerStep": 15}


def idle_profile() -> profile:
    """One that steps but never records, since PyTorch cannot record two at a time."""
    return profile(activities=CPU, schedule=lambda _: ProfilerAction.NONE)


@pytest.mark.usefixtures("daemon")
def test_two_at_once_add_to_one_count() -> None:
    with profile(activities=CPU) as first:
        with idle_profile() as second:
            for _ in range(5):
                first.step()
                second.step()
            assert KinetoStepTracker.step_counts() == {"ProfilerStep": 10}
        # Erased for both: the other one's next step starts it afresh, at the global step.
        assert KinetoStepTracker.step_counts() == {}
        first.step()
        assert KinetoStepTracker.step_counts() == {"ProfilerStep": 11}
    assert KinetoStepTracker.step_counts() == {}
    assert KinetoStepTracker.current_step() == 11


@pytest.mark.usefixtures("no_daemon")
def test_two_at_once_without_daemon_count_nothing() -> None:
    with profile(activities=CPU) as first, idle_profile() as second:
        for _ in range(5):
            first.step()
            second.step()
        assert KinetoStepTracker.step_counts() == {"ProfilerStep": 0}
    assert (KinetoStepTracker.current_step(), KinetoStepTracker.step_counts()) == (0, {})
