"""The demo trains, its counts are exact, and it says so only if they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kineto_step_tracker import KinetoStepTracker
from kineto_step_tracker.demo import Progress, numpy_model, run
from kineto_step_tracker.demo.account import CallbackLog, StepCounts
from kineto_step_tracker.demo.task import Array, Digits, Model, Replica, initial_weights


@pytest.fixture(params=["numpy_model", "torch_model"])
def model(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "torch_model":
        return torch_model()
    return numpy_model


def torch_model() -> ModuleType:
    pytest.importorskip("torch", reason="trains with PyTorch")
    from kineto_step_tracker.demo import torch_model

    return torch_model


def test_the_run_is_exact_and_the_model_learns(model: Model) -> None:
    seen: list[Progress] = []
    outcome = run(model, threads=2, iterations=60, watch=seen.append)
    assert outcome.ours.faults == []
    assert outcome.ours.taken == dict.fromkeys(["SGD#1", "Adam#1", "SGD#2", "Adam#2"], 60)
    assert outcome.ours.steps == list(range(1, 61))
    before, after = outcome.loss
    assert before > 2 > 1 > after
    assert outcome.accuracy > 0.8
    assert seen[-1] == Progress(
        60, seen[-1].loss, outcome.ours.counts, 60, 60, len(outcome.textbook.steps)
    )


def test_pytorchs_algorithm_errs_in_the_same_run_where_threads_meet() -> None:
    outcome = run(numpy_model, threads=4, iterations=100)
    assert outcome.ours.exact
    assert not outcome.textbook.exact
    assert len(outcome.textbook.steps) > 100
    assert outcome.textbook.overlaps


def test_pytorchs_algorithm_is_exact_where_they_do_not(model: Model) -> None:
    outcome = run(model, threads=1, iterations=5)
    assert outcome.ours.exact
    assert outcome.textbook.exact


def test_the_seed_decides_what_is_learned() -> None:
    first, again, other = (run(numpy_model, 2, 5, seed).loss for seed in (1, 1, 2))
    assert first == again != other


def test_both_models_learn_the_same() -> None:
    with_numpy, with_torch = (run(model, 2, 20).loss for model in (numpy_model, torch_model()))
    assert with_numpy == pytest.approx(with_torch, rel=1e-3)


def test_with_pytorch_the_hook_counts_and_everything_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch_model()
    from torch.autograd import profiler

    from kineto_step_tracker import pytorch

    installed: list[bool] = []
    kineto_steps: list[None] = []
    monkeypatch.setattr(profiler, "_kineto_step", lambda: kineto_steps.append(None))
    in_place = vars(profiler)["_kineto_step"]
    run(model, 1, 3, watch=lambda progress: installed.append(pytorch.is_installed()))
    assert all(installed)
    assert not pytorch.is_installed()
    assert kineto_steps == []
    assert vars(profiler)["_kineto_step"] is in_place
    assert KinetoStepTracker.step_counts() == {}


class Miscounting:
    """`numpy_model`, whose tracker gets an increment that no optimizer has made."""

    library = "nothing"

    @contextmanager
    def replicas(
        self, number: int, weights: list[Array], log: CallbackLog, mirror: Callable[[str], object]
    ) -> Iterator[tuple[StepCounts, list[Replica]]]:
        with numpy_model.replicas(number, weights, log, mirror) as (tracker, replicas):
            tracker.increment_step("SGD#1")  # type: ignore[attr-defined]
            yield tracker, replicas


def test_a_tracker_that_is_not_exact_is_found_out() -> None:
    outcome = run(Miscounting(), 2, 5)
    assert outcome.ours.faults == [
        "1 step counted that nobody took",
        "global step 6",
        "1 callback too many",
    ]
    assert outcome.textbook.counts == dict.fromkeys(["SGD#1", "Adam#1", "SGD#2", "Adam#2"], 5)


class Failing(Miscounting):
    """`numpy_model`, one of whose optimizers fails at its third step."""

    @contextmanager
    def replicas(
        self, number: int, weights: list[Array], log: CallbackLog, mirror: Callable[[str], object]
    ) -> Iterator[tuple[StepCounts, list[Replica]]]:
        def fail() -> None:
            left.pop()

        with numpy_model.replicas(number, weights, log, mirror) as (tracker, replicas):
            left = [1, 2]
            replicas[-1].optimizers["Adam#2"] = fail
            yield tracker, replicas


def test_a_thread_that_fails_ends_the_run_with_its_error() -> None:
    before = set(threading.enumerate())
    with pytest.raises(IndexError, match="pop from empty list"):
        run(Failing(), 2, 1_000_000)
    assert set(threading.enumerate()) <= before


def test_ctrl_c_ends_the_run_and_its_threads() -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        run(numpy_model, 2, 1_000_000, watch=interrupt)
    assert set(threading.enumerate()) <= before


def test_the_images_are_told_apart_and_none_is_lost() -> None:
    train, test = Digits.split(np.random.default_rng(0))
    assert len(train.images) == len(train.labels) == 1437
    assert len(test.images) == len(test.labels) == 360
    everything = np.concatenate([train.images, test.images])
    assert everything.min() == 0
    assert everything.max() == 1
    assert len({image.tobytes() for image in everything}) == 1797


def test_the_gradients_are_those_of_the_loss() -> None:
    """Against differences of the loss, for the largest gradient of each weight matrix and bias."""
    rng = np.random.default_rng(0)
    digits, _ = Digits.split(rng)
    weights = [weight.astype(np.float64) for weight in initial_weights(rng)]

    def replica(weights: list[Any]) -> Replica:
        with numpy_model.replicas(1, weights, CallbackLog(int), str) as (_, (replica,)):
            return replica

    _, gradients = replica(weights).backward(digits)
    for place, gradient in enumerate(gradients):
        where = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        losses = []
        for step in (1e-4, -1e-4):
            moved = [weight.copy() for weight in weights]
            moved[place][where] += step
            losses.append(replica(moved).evaluate(digits)[0])
        assert (losses[0] - losses[1]) / 2e-4 == pytest.approx(gradient[where], rel=1e-3)
