"""The steps of one training, in a loop of one's own."""

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch

from kineto_step_tracker import KinetoStepTracker, pytorch
from kineto_step_tracker.integrations import training
from kineto_step_tracker.integrations.training import TrainingSteps
from tests.integrations.training import NOTHING, as_a_new_process, copies, left_behind
from tests.pytorch.training import sgd


def test_it_is_installed_while_it_runs() -> None:
    optimizer = sgd()
    optimizer.step()
    with TrainingSteps() as steps:
        optimizer.step()
        assert (steps.step, KinetoStepTracker.step_counts()) == (1, {"SGD#1": 1})
        steps.end([optimizer])
    optimizer.step()
    assert steps.step == 1
    assert left_behind() == NOTHING


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_takes_it_out(error: type[BaseException]) -> None:
    with pytest.raises(error), TrainingSteps():
        raise error
    assert not pytorch.is_installed()


def test_a_user_who_installed_it_keeps_it() -> None:
    pytorch.install(kineto=False)
    mine, theirs = sgd(), sgd()
    for _ in range(2):
        mine.step()
    steps = TrainingSteps()
    steps.begin()
    theirs.step()
    steps.end([theirs])
    assert pytorch.is_installed()
    assert KinetoStepTracker.step_counts() == {"SGD#1": 2}
    # What it erased counts again if it is stepped again.
    theirs.step()
    assert KinetoStepTracker.step_counts() == {"SGD#1": 2, "SGD#2": 4}


def test_a_user_who_uninstalls_it_meanwhile_has_it_out() -> None:
    steps = TrainingSteps()
    steps.begin()
    pytorch.uninstall()
    pytorch.install(kineto=False)
    steps.end()
    assert pytorch.is_installed()


def test_ending_an_optimizer_that_never_stepped() -> None:
    steps = TrainingSteps()
    steps.begin()
    steps.end([sgd()])
    steps.end([sgd()])
    assert left_behind() == NOTHING


def test_beginning_again_ends_the_one_before() -> None:
    steps = TrainingSteps()
    steps.begin()
    steps.begin()
    assert len(pytorch._holders) == 1
    steps.end()
    assert left_behind() == NOTHING


def test_a_with_statement_within_one_of_the_same_object_is_refused() -> None:
    optimizer = sgd()
    with TrainingSteps() as steps:
        with pytest.raises(RuntimeError, match="is in use: make one TrainingSteps"), steps:
            pass
        optimizer.step()
        assert steps.step == 1
    assert not pytorch.is_installed()
    with steps:
        assert pytorch.is_installed()


def test_a_refused_install_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = TrainingSteps()
    with monkeypatch.context() as missing:
        missing.delattr(torch.profiler, "_optimizer_post_hook")
        with pytest.raises(RuntimeError, match="_optimizer_post_hook"):
            steps.begin()
    assert not steps.running
    assert left_behind() == NOTHING
    with steps:
        assert pytorch.is_installed()


def test_kineto_is_stepped_if_asked_for(kineto: list[int]) -> None:
    optimizer = sgd()
    with TrainingSteps(kineto=True) as steps:
        steps.load_state_dict({"step": 100})
        optimizer.step()
    assert len(kineto) == 1
    with TrainingSteps(kineto=False):
        optimizer.step()
    assert len(kineto) == 1


def test_it_goes_on_from_a_checkpoint() -> None:
    with TrainingSteps() as steps:
        sgd().step()
        state = pickle.loads(pickle.dumps(steps.state_dict()))
    as_a_new_process()
    optimizer = sgd()
    with TrainingSteps() as steps:
        assert steps.step == 0
        # By the name that torch.distributed.checkpoint's Stateful has for it.
        steps.load_state_dict(state_dict=state)
        optimizer.step()
        assert (steps.step, KinetoStepTracker.step_counts()) == (2, {"SGD#1": 2})


def test_a_checkpoint_loaded_before_the_training_counts_too() -> None:
    steps = TrainingSteps()
    steps.load_state_dict({"step": 100})
    with steps:
        sgd().step()
        assert steps.step == 101


def test_those_that_count_already_go_on_from_the_checkpoint() -> None:
    optimizer = sgd()
    with TrainingSteps() as steps:
        optimizer.step()
        steps.load_state_dict({"step": 100})
        optimizer.step()
        assert (steps.step, KinetoStepTracker.step_counts()) == (101, {"SGD#1": 101})


def test_an_optimizer_that_begins_after_the_checkpoint_joins_one_that_goes_on() -> None:
    first, second = sgd(), sgd()
    with TrainingSteps() as steps:
        first.step()
        steps.load_state_dict({"step": 100})
        for _ in range(3):
            first.step()
            second.step()
        assert (steps.step, KinetoStepTracker.step_counts()) == (103, {"SGD#1": 103, "SGD#2": 103})


@pytest.mark.parametrize("step", [0, 4, 5])
def test_the_step_never_falls(step: int) -> None:
    optimizer = sgd()
    with TrainingSteps() as steps:
        for _ in range(5):
            optimizer.step()
        steps.load_state_dict({"step": step})
        assert (steps.step, KinetoStepTracker.step_counts()) == (5, {"SGD#1": 5})


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (None, TypeError, "state_dict must be a mapping, not None"),
        (["step"], TypeError, "state_dict must be a mapping, not .'step'."),
        ({}, ValueError, 'state_dict must have the key "step", not ..'),
        ({"steps": 5}, ValueError, "\"step\", not .'steps'."),
        ({"step": True}, TypeError, "step must be an int, not bool .True."),
        ({"step": False}, TypeError, "step must be an int, not bool .False."),
        ({"step": "5"}, TypeError, "must be an int"),
        ({"step": 5.0}, TypeError, "must be an int"),
        ({"step": -1}, ValueError, "from 0 to 2"),
        ({"step": 2**62 + 1}, ValueError, "from 0 to 2"),
    ],
)
def test_what_is_no_checkpoint_is_refused(state: Any, error: type[Exception], message: str) -> None:
    with TrainingSteps() as steps:
        with pytest.raises(error, match=message):
            steps.load_state_dict(state)
        assert steps.step == 0


def test_doctests() -> None:
    result = doctest.testmod(training)
    assert (result.failed, result.attempted > 0) == (0, True)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="kineto must be a bool or None, not 1"):
        TrainingSteps(kineto=1)  # type: ignore[arg-type]


def test_a_copy_is_not_running() -> None:
    with TrainingSteps(kineto=False) as steps:
        for copied in copies(steps):
            assert repr(copied) == "<TrainingSteps at step 0, kineto=False, not running>"
            copied.end()
        assert repr(steps) == "<TrainingSteps at step 0, kineto=False, running>"
        assert pytorch.is_installed()


@pytest.mark.parametrize("name", ["training", "lightning", "transformers"])
def test_without_pytorch_the_import_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("integrations.training", f"integrations.{name}", "pytorch"):
        monkeypatch.delitem(sys.modules, f"kineto_step_tracker.{module}", raising=False)
    # The package has it too, and would go without if it is asked for it.
    monkeypatch.delattr("kineto_step_tracker.pytorch")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'kineto-step-tracker\[torch\]'"):
        import_module(f"kineto_step_tracker.integrations.{name}")


def test_importing_the_package_imports_no_framework() -> None:
    program = "import sys, kineto_step_tracker.integrations as i; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"torch", "lightning", "pytorch_lightning", "transformers"} & set(
        done.stdout.split()
    )


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("lightning", ["lightning", "lightning.pytorch", "pytorch_lightning"]),
        ("transformers", ["transformers"]),
    ],
)
def test_without_the_framework_the_error_names_the_extra(
    framework: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"kineto_step_tracker.integrations.{framework}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=f"pip install 'kineto-step-tracker.{framework}.'"
    ) as found:
        import_module(module)
    assert found.value.name == framework
