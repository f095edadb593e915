"""The callback for Lightning, in Trainers that end in every way that one can."""

from __future__ import annotations

import contextlib
import doctest
import gc
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")
pytest.importorskip("pytorch_lightning", reason="Lightning is not installed; tox -e torch has it")

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from kineto_step_tracker import KinetoStepTracker, pytorch
from kineto_step_tracker.integrations import lightning as integration
from kineto_step_tracker.integrations.lightning import KinetoStepCallback
from tests.integrations.training import NOTHING, as_a_new_process, batches, copies, left_behind

# Lightning warns of few workers, of short epochs, of GPUs that it does not use.
pytestmark = pytest.mark.filterwarnings("default")


class Line(pl.LightningModule):
    """One optimizer, which Lightning steps."""

    def __init__(self, fail_at: int | None = None, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.fail_at, self.error = fail_at, error
        self.installed_while: set[str] = set()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def training_step(self, batch: Tensor, number: int) -> Any:
        if number == self.fail_at:
            raise self.error("in training")
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Tensor, number: int) -> None:
        if pytorch.is_installed():
            self.installed_while.add("validation")


class TwoByHand(Line):
    """Two optimizers under manual optimisation."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(8, 1)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters()) for layer in (self.layer, self.other)]

    def training_step(self, batch: Tensor, number: int) -> Any:
        self.manual_backward((self.layer(batch) + self.other(batch)).square().mean())
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()


def trainer(callback: Any, epochs: int = 1, **options: Any) -> Any:
    options = {
        "max_epochs": epochs,
        "callbacks": [callback],
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    } | options
    return pl.Trainer(**options)


class Watch(pl.Callback):
    """What the process-wide tracker has after each batch."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.counts: dict[str, int] = {}

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps.append(KinetoStepTracker.current_step())
        self.counts = KinetoStepTracker.step_counts()


def test_two_optimizers_by_hand_are_one_step_a_batch() -> None:
    callback, watch = KinetoStepCallback(), Watch()
    training = trainer(callback, callbacks=[callback, watch])
    training.fit(TwoByHand(), batches(10))
    assert training.global_step == 20
    assert watch.steps == list(range(1, 11))
    assert watch.counts == {"SGD#1": 10, "SGD#2": 10}
    assert callback.step == int(training.callback_metrics["kineto_step"]) == 10
    assert left_behind() == NOTHING


def test_gradients_accumulated_are_one_step() -> None:
    callback = KinetoStepCallback()
    training = trainer(callback, accumulate_grad_batches=5)
    training.fit(Line(), batches(10))
    assert callback.step == training.global_step == 2


def test_large_steps_are_logged_exactly() -> None:
    class Resumed(pl.Callback):
        def on_train_start(self, *_: Any) -> None:
            KinetoStepTracker._current_step = 2**24

    callback = KinetoStepCallback(metric="step/kineto")
    training = trainer(callback, callbacks=[Resumed(), callback])
    training.fit(Line(), batches(1))
    assert int(training.callback_metrics["step/kineto"]) == 2**24 + 1


def test_logged_to_the_logger(tmp_path: Path) -> None:
    logger = pl.loggers.CSVLogger(tmp_path)
    training = trainer(KinetoStepCallback(), logger=logger, log_every_n_steps=5)
    training.fit(TwoByHand(), batches(10))
    lines = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("kineto_step")
    assert [float(line.split(",")[column]) for line in lines[1:]] == [5, 10]


def test_no_metric() -> None:
    training = trainer(KinetoStepCallback(metric=None))
    training.fit(Line(), batches(2))
    assert training.callback_metrics == {}


def test_barebones_mode_does_not_log() -> None:
    callback = KinetoStepCallback()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "You are trying to .self.log")
        training = pl.Trainer(barebones=True, max_epochs=1, callbacks=[callback], accelerator="cpu")
        training.fit(Line(), batches(2))
    assert callback.step == 2
    assert training.callback_metrics == {}


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Lightning ignores SIGINT for good once a KeyboardInterrupt has come to it.

    And a Trainer whose end goes wrong stays in the handler of SIGTERM, its optimizers with it.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_takes_it_out(error: type[BaseException]) -> None:
    callback = KinetoStepCallback()
    training = trainer(callback)
    # Lightning makes SystemExit of a KeyboardInterrupt.
    with pytest.raises((ValueError, SystemExit)):
        training.fit(Line(fail_at=3, error=error), batches(10))
    assert callback.step == 3
    assert left_behind() == NOTHING
    # And the same callback is good for another training.
    trainer(callback).fit(Line(), batches(2))
    assert callback.step == 5
    assert left_behind() == NOTHING


def test_an_exception_before_training_begins_takes_it_out() -> None:
    class Failing(pl.Callback):
        def setup(self, *_: Any, **__: Any) -> None:
            raise ValueError("in setup")

    for order in ([KinetoStepCallback(), Failing()], [Failing(), KinetoStepCallback()]):
        with pytest.raises(ValueError, match="in setup"):
            trainer(None, callbacks=order).fit(Line(), batches(1))
        assert left_behind() == NOTHING


def test_trainers_one_after_the_other_go_on() -> None:
    steps = []
    for _ in range(3):
        callback = KinetoStepCallback()
        training = trainer(callback)
        training.fit(Line(), batches(4))
        steps.append((training.global_step, callback.step))
        assert left_behind() == NOTHING
    assert steps == [(4, 4), (4, 8), (4, 12)]


def test_a_trainer_that_is_called_again_goes_on() -> None:
    callback = KinetoStepCallback()
    training, model = trainer(callback), Line()
    training.fit(model, batches(4))
    training.fit_loop.max_epochs = 2
    training.fit(model, batches(4))
    assert callback.step == training.global_step == 8
    assert left_behind() == NOTHING


def test_it_is_in_for_training_only() -> None:
    training, model = trainer(KinetoStepCallback()), Line()
    training.validate(model, batches(1), verbose=False)
    assert model.installed_while == set()
    training.fit(model, batches(1), batches(1))
    assert model.installed_while == {"validation"}


def test_a_user_who_installed_it_keeps_it_without_the_trainings_requesters() -> None:
    pytorch.install(kineto=False)
    mine = torch.optim.Adam([nn.Parameter(torch.ones(1))])
    mine.step()
    training = trainer(KinetoStepCallback())
    training.fit(Line(), batches(3))
    assert pytorch.is_installed()
    assert training.optimizers
    assert KinetoStepTracker.step_counts() == {"Adam#1": 1}
    pytorch.uninstall()


def test_a_training_resumes(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    training = trainer(KinetoStepCallback())
    training.fit(TwoByHand(), batches(10))
    training.save_checkpoint(path)
    as_a_new_process()

    # Not by whatever else reads a checkpoint.
    callback = KinetoStepCallback()
    trainer(callback).validate(TwoByHand(), batches(1), ckpt_path=path, verbose=False)
    assert callback.step == 0

    watch = Watch()
    training = trainer(callback, 2, callbacks=[callback, watch])
    training.fit(TwoByHand(), batches(10), ckpt_path=path)
    assert watch.steps == list(range(11, 21))
    assert (training.global_step, callback.step) == (40, 20)
    assert left_behind() == NOTHING


def test_a_checkpoint_in_the_middle_has_the_step_of_its_batch(tmp_path: Path) -> None:
    saving = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1)
    callback = KinetoStepCallback()
    trainer(None, callbacks=[saving, callback], enable_checkpointing=True).fit(
        TwoByHand(), batches(6)
    )
    saved = [torch.load(path)["callbacks"]["KinetoStepCallback"] for path in tmp_path.iterdir()]
    # Lightning's every 4 steps are every 2 batches.
    assert sorted(state["step"] for state in saved) == [2, 4, 6]


def test_a_checkpoint_from_before_the_callback_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    training = trainer(None, callbacks=[])
    training.fit(Line(), batches(2))
    training.save_checkpoint(path)
    callback = KinetoStepCallback()
    trainer(callback, 2).fit(Line(), batches(2), ckpt_path=path)
    assert callback.step == 2


class AtEpochsEnd(pl.Callback):
    """Does something else in the middle of a training."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def on_train_epoch_end(self, *_: Any) -> None:
        self.action()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One with a large step."""
    KinetoStepTracker._current_step = 1000
    training = trainer(KinetoStepCallback())
    training.fit(Line(), batches(1))
    training.save_checkpoint(tmp_path / "a.ckpt")
    as_a_new_process()
    return tmp_path / "a.ckpt"


def test_validation_by_another_trainer_does_not_end_it(checkpoint: Path) -> None:
    class Failing(Line):
        def validation_step(self, batch: Tensor, number: int) -> None:
            raise ValueError("in validation")

    def validate() -> None:
        trainer(callback).validate(Line(), batches(1), ckpt_path=checkpoint, verbose=False)
        with pytest.raises(ValueError, match="in validation"):
            trainer(callback).validate(Failing(), batches(1), verbose=False)

    callback = KinetoStepCallback()
    training = trainer(callback, 3, callbacks=[callback, AtEpochsEnd(validate)])
    training.fit(Line(), batches(2))
    assert callback.step == training.global_step == 6
    assert left_behind() == NOTHING


@pytest.mark.usefixtures("signal_handlers")
def test_validation_by_the_same_trainer_does_not_end_it(checkpoint: Path) -> None:
    seen: list[object] = []

    def validate() -> None:
        training.validate(model, batches(1), ckpt_path=checkpoint, verbose=False)
        seen.append((pytorch.is_installed(), callback.step))

    callback, model = KinetoStepCallback(), Line()
    training = trainer(callback, callbacks=[callback, AtEpochsEnd(validate)])
    # Lightning itself may not find back into the training.
    with contextlib.suppress(AssertionError):
        training.fit(model, batches(2))
    assert seen == [(True, 2)]
    assert left_behind() == NOTHING


def test_another_trainers_fit_meanwhile_is_refused() -> None:
    def fit() -> None:
        with pytest.raises(RuntimeError, match="another Trainer: make one for each Trainer"):
            trainer(callback).fit(Line(), batches(1))

    callback = KinetoStepCallback()
    training = trainer(callback, 3, callbacks=[callback, AtEpochsEnd(fit)])
    training.fit(Line(), batches(2))
    assert callback.step == training.global_step == 6
    assert left_behind() == NOTHING
    trainer(callback).fit(Line(), batches(2))
    assert callback.step == 8


class FailsToo(pl.Callback):
    """Keeps Lightning from telling of an exception those after it."""

    def on_exception(self, *_: Any) -> None:
        raise OSError("in on_exception")


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("same", [True, False])
def test_a_fit_begins_anew_after_one_whose_end_it_was_not_told(same: bool) -> None:
    callback = KinetoStepCallback()
    failing = trainer(callback, callbacks=[FailsToo(), callback])
    with pytest.raises(OSError, match="in on_exception"):
        failing.fit(Line(fail_at=3), batches(10))
    assert pytorch.is_installed()
    (failing if same else trainer(callback)).fit(Line(), batches(2))
    assert callback.step == 5
    assert not pytorch.is_installed()


def test_a_trainer_that_was_given_up_does_not_keep_the_callback() -> None:
    callback = KinetoStepCallback()
    callback.setup(trainer(callback), None, "fit")
    gc.collect()
    trainer(callback).fit(Line(), batches(2))
    assert callback.step == 2
    assert left_behind() == NOTHING


def test_kineto_is_stepped_if_asked_for(kineto: list[int]) -> None:
    trainer(KinetoStepCallback(kineto=True)).fit(TwoByHand(), batches(3))
    assert len(kineto) == 3
    trainer(KinetoStepCallback(kineto=False)).fit(TwoByHand(), batches(3))
    assert len(kineto) == 3


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


def test_copies_begin_outside_of_any_training() -> None:
    def copy() -> None:
        for copied in copies(callback):
            assert repr(copied) == repr(callback)
            assert not copied._steps.running
            copied.on_exception(training, None, ValueError())

    callback = KinetoStepCallback(metric="step", kineto=False)
    training = trainer(callback, 3, callbacks=[callback, AtEpochsEnd(copy)])
    training.fit(Line(), batches(2))
    assert callback.step == training.global_step == 6
    assert left_behind() == NOTHING


@pytest.mark.parametrize(
    ("loaded", "found"),
    [
        ({"lightning.pytorch": {"Callback": 1}, "pytorch_lightning": {"Callback": 2}}, (1, 2)),
        ({"lightning.pytorch": {"Callback": 1}}, (1,)),
        ({"pytorch_lightning": {"Callback": 2}}, (2,)),
        # One under both names.
        ({"lightning.pytorch": {"Callback": 1}, "pytorch_lightning": {"Callback": 1}}, (1,)),
        # Something else of that name.
        ({"lightning.pytorch": {}, "pytorch_lightning": {"Callback": 2}}, (2,)),
        ({"lightning.pytorch": {"Callback": 1}, "pytorch_lightning": {}}, (1,)),
    ],
)
def test_it_is_a_callback_of_each_lightning_that_is_loaded(
    loaded: dict[str, dict[str, Any]], found: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, attributes in loaded.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**attributes))
    assert integration._callback_classes() == found


def test_the_other_name_of_lightning() -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning has one name here")
    from lightning.pytorch import LightningModule, Trainer

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)

        configure_optimizers = Line.configure_optimizers

        def training_step(self, batch: Tensor, number: int) -> Any:
            return self.layer(batch).square().mean()

    callback = KinetoStepCallback()
    Trainer(
        max_epochs=1,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(Model(), batches(3))
    assert callback.step == 3
    assert left_behind() == NOTHING
