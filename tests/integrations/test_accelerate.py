"""accelerate: its optimizers wrap others, and both are ``torch.optim.Optimizer``."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")
pytest.importorskip("accelerate", reason="accelerate is not installed; tox -e torch has it")

import torch
from accelerate import Accelerator, PartialState
from accelerate.optimizer import AcceleratedOptimizer

from kineto_step_tracker import KinetoStepTracker
from kineto_step_tracker.integrations.training import TrainingSteps
from tests.integrations.training import as_a_new_process
from tests.pytorch.training import sgd

pytestmark = pytest.mark.filterwarnings("default")


def test_a_prepared_optimizer_counts_once() -> None:
    accelerator = Accelerator(cpu=True)
    optimizer = accelerator.prepare(accelerator.prepare(sgd()))
    with TrainingSteps() as steps:
        for number in range(1, 4):
            optimizer.step()
            assert (steps.step, KinetoStepTracker.step_counts()) == (number, {"SGD#1": number})


def test_a_step_that_is_skipped_is_not_counted() -> None:
    PartialState(cpu=True)
    # Accelerator has no scaler without a GPU; this is what it does with one.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.1), scaler=scaler)
    seen = []
    with TrainingSteps() as steps:
        for factor in (1.0, float("inf"), 1.0, float("nan"), 1.0):
            torch.autograd.backward(scaler.scale(weight * factor))
            optimizer.step()
            optimizer.zero_grad()
            seen.append((optimizer.step_was_skipped, steps.step))
    assert seen == [(False, 1), (True, 1), (False, 2), (True, 2), (False, 3)]


def test_its_checkpoints_have_the_step(tmp_path: Path) -> None:
    for begin, end in ((0, 3), (3, 6)):
        as_a_new_process()
        accelerator = Accelerator(cpu=True)
        optimizer = accelerator.prepare(sgd())
        with TrainingSteps() as steps:
            accelerator.register_for_checkpointing(steps)
            if begin:
                accelerator.load_state(str(tmp_path))
            assert steps.step == begin
            for _ in range(3):
                optimizer.step()
            assert steps.step == end
            accelerator.save_state(str(tmp_path))
        del optimizer, accelerator
        gc.collect()
