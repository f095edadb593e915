"""The callback for transformers' Trainer. The model is made from a configuration."""

from __future__ import annotations

import doctest
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")
pytest.importorskip("accelerate", reason="accelerate is not installed; tox -e torch has it")
pytest.importorskip("transformers", reason="transformers is not installed; tox -e torch has it")

import torch
import transformers

from kineto_step_tracker import KinetoStepTracker, pytorch
from kineto_step_tracker.integrations.transformers import KinetoStepCallback
from tests.integrations.training import NOTHING, as_a_new_process, copies, left_behind

# Its dependencies use what is deprecated.
pytestmark = pytest.mark.filterwarnings("default")


class Line(torch.nn.Module):
    """All that Trainer asks of a model."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.batches, self.fail_at = 0, fail_at

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.batches += 1
        if self.batches == self.fail_at:
            raise ValueError("in training")
        return {"loss": (self.layer(inputs).squeeze() - labels).square().mean()}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def trainer(
    folder: Path, *callbacks: Any, steps: int = 4, model: Any = None, **options: Any
) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder),
        **{
            "max_steps": steps,
            "per_device_train_batch_size": 2,
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
        }
        | options,
    )
    data = [{"inputs": torch.randn(8), "labels": torch.randn(())} for _ in range(64)]
    made = transformers.Trainer(
        model or Line(), arguments, train_dataset=data, eval_dataset=data, callbacks=list(callbacks)
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


def logged(training: Any, metric: str = "kineto_step") -> list[tuple[int, int]]:
    return [(entry["step"], entry[metric]) for entry in training.state.log_history[:-1]]


def test_the_step_is_logged(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, *_: Any, logs: Any, **__: Any) -> None:
            seen.append(logs.get("mine"))

    callback = KinetoStepCallback(metric="mine")
    training = trainer(tmp_path, callback, Reporter(), gradient_accumulation_steps=2)
    training.train()
    assert logged(training, "mine") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert seen == [1, 2, 3, 4, None]
    assert callback.step == 4
    assert left_behind() == NOTHING


def test_metrics_that_trainer_returns_are_without_it(tmp_path: Path) -> None:
    evaluations: list[dict[str, float]] = []

    class Evaluated(transformers.TrainerCallback):
        def on_evaluate(self, *_: Any, metrics: Any, **__: Any) -> None:
            evaluations.append(metrics)

    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}
    training = trainer(tmp_path, KinetoStepCallback(), Evaluated(), **options)
    output = training.train()
    # What hyperparameter_search() does with them unless it is told otherwise.
    objectives = [transformers.trainer_utils.default_compute_objective(one) for one in evaluations]
    assert objectives == [one["eval_loss"] for one in evaluations]
    assert len(objectives) == 2
    assert "kineto_step" not in output.metrics
    # From which the table of the model card is made.
    history = training.state.log_history
    assert ["kineto_step" in one for one in history] == ["loss" in one for one in history]
    assert sum("kineto_step" in one for one in history) == 4


def test_no_metric(tmp_path: Path) -> None:
    training = trainer(tmp_path, KinetoStepCallback(metric=None))
    training.train()
    assert not any("kineto_step" in entry for entry in training.state.log_history)


def test_what_is_logged_outside_of_training_has_no_step(tmp_path: Path) -> None:
    training = trainer(tmp_path, KinetoStepCallback())
    training.log({"loss": 1.0})
    assert "kineto_step" not in training.state.log_history[-1]


def test_trainings_one_after_the_other_go_on(tmp_path: Path) -> None:
    callback = KinetoStepCallback()
    for number in range(1, 4):
        training = trainer(tmp_path, callback)
        training.train()
        assert (training.state.global_step, callback.step) == (4, 4 * number)
        assert left_behind() == NOTHING
    training.train()
    assert callback.step == 16
    assert left_behind() == NOTHING


def test_leaving_the_with_statement_takes_it_out_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in training"), KinetoStepCallback() as callback:
        trainer(tmp_path, callback, model=Line(fail_at=3)).train()
    assert callback.step == 2
    assert left_behind() == NOTHING


def test_the_next_training_takes_over_what_an_exception_left(tmp_path: Path) -> None:
    callback = KinetoStepCallback()
    failing = trainer(tmp_path, callback, model=Line(fail_at=3))
    with pytest.raises(ValueError, match="in training"):
        failing.train()
    assert pytorch.is_installed()
    trainer(tmp_path, callback).train()
    assert callback.step == 6
    assert left_behind() == NOTHING


def test_a_trainer_that_an_exception_left_takes_it_out_when_it_is_collected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in training"):
        trainer(tmp_path, KinetoStepCallback(), model=Line(fail_at=3)).train()
    gc.collect()
    assert left_behind() == NOTHING


def test_a_user_who_installed_it_keeps_it_without_the_trainings_requester(tmp_path: Path) -> None:
    pytorch.install(kineto=False)
    mine = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    mine.step()
    training = trainer(tmp_path, KinetoStepCallback())
    training.train()
    assert pytorch.is_installed()
    assert training.optimizer is not None
    assert KinetoStepTracker.step_counts() == {"SGD#1": 1}


@pytest.mark.parametrize("restore", [False, True])
def test_a_training_resumes(tmp_path: Path, restore: bool) -> None:
    options = {"save_strategy": "steps", "save_steps": 3}
    trainer(tmp_path, KinetoStepCallback(), steps=4, **options).train()
    as_a_new_process()
    checkpoint = tmp_path / "checkpoint-3"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["KinetoStepCallback"]["attributes"]["saved"] == {"step": 3}

    options |= {"restore_callback_states_from_checkpoint": restore}
    training = trainer(tmp_path, KinetoStepCallback(), steps=6, **options)
    training.train(resume_from_checkpoint=str(checkpoint))
    assert logged(training) == [(number, number) for number in range(1, 7)]
    assert left_behind() == NOTHING


def test_several_callbacks_resume_together(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2}
    callbacks = KinetoStepCallback(), KinetoStepCallback(metric="again")
    trainer(tmp_path, *callbacks, steps=4, **options).train()
    as_a_new_process()
    callbacks = KinetoStepCallback(), KinetoStepCallback(metric="again")
    trainer(tmp_path, *callbacks, steps=6, **options).train(resume_from_checkpoint=True)
    assert KinetoStepTracker.current_step() == 6
    assert left_behind() == NOTHING


def test_a_checkpoint_from_before_the_callback_was_there(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, steps=2, **options).train()
    callback = KinetoStepCallback()
    training = trainer(tmp_path, callback, steps=4, **options)
    training.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert callback.step == 2
    # And what it saves has the step.
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["KinetoStepCallback"]["attributes"]["saved"] == {"step": 2}


def test_a_subclass_may_save_something_else(tmp_path: Path) -> None:
    class Callback(KinetoStepCallback):
        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {}}

    options = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, Callback(), steps=2, **options).train()
    resumed = trainer(tmp_path, Callback(), steps=4, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert KinetoStepTracker.current_step() == 4


@pytest.mark.parametrize(("saved", "error"), [({}, ValueError), (None, TypeError)])
def test_a_bad_checkpoint_leaves_nothing(
    tmp_path: Path, saved: object, error: type[Exception]
) -> None:
    options = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, KinetoStepCallback(), steps=2, **options).train()
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text())
    state["stateful_callbacks"]["KinetoStepCallback"]["attributes"]["saved"] = saved
    path.write_text(json.dumps(state))
    training = trainer(tmp_path, KinetoStepCallback(), steps=4)
    with pytest.raises(error, match="state_dict must "):
        training.train(resume_from_checkpoint=True)
    assert left_behind() == NOTHING


def test_kineto_is_stepped_if_asked_for(tmp_path: Path, kineto: list[int]) -> None:
    trainer(tmp_path, KinetoStepCallback(kineto=True)).train()
    assert len(kineto) == 4
    trainer(tmp_path, KinetoStepCallback(kineto=False)).train()
    assert len(kineto) == 4


def test_doctests() -> None:
    result = doctest.testmod(sys.modules[KinetoStepCallback.__module__])
    assert (result.failed, result.attempted > 0) == (0, True)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="metric must be a str or None, not 5"):
        KinetoStepCallback(metric=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kineto must be a bool or None, not 'yes'"):
        KinetoStepCallback(kineto="yes")  # type: ignore[arg-type]


def test_repr() -> None:
    callback = KinetoStepCallback(metric="step", kineto=False)
    assert repr(callback) == "KinetoStepCallback(metric='step', kineto=False)"


def test_copies_begin_outside_of_any_training(tmp_path: Path) -> None:
    class Copying(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            for copied in copies(callback):
                assert repr(copied) == repr(callback)
                assert copied._optimizer is None
                with copied:
                    pass

    callback = KinetoStepCallback(metric="step", kineto=False)
    training = trainer(tmp_path, callback, Copying())
    training.train()
    assert callback.step == training.state.global_step == 4
    assert left_behind() == NOTHING
