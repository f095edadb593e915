"""A callback for Lightning's ``Trainer``.

It imports Lightning under the name under which it is loaded already, ``lightning.pytorch`` or
``pytorch_lightning``, and otherwise the one that is installed. If both are loaded, the callback is
one of both.
"""

from __future__ import annotations

import copy
import sys
import types
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kineto_step_tracker.integrations.training import TrainingSteps

# isort: split
# After what says how to install it.
import torch

__all__ = ["KinetoStepCallback"]


def _callback_classes() -> tuple[type, ...]:
    names = ["lightning.pytorch", "pytorch_lightning"]
    names.sort(key=sys.modules.__contains__, reverse=True)
    found: list[Any] = []
    for name in names:
        if found and name not in sys.modules:
            break
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
            continue
        # Something else may have the name: a folder in the working directory is enough. Or one
        # module has both names.
        callback = getattr(module, "Callback", None)
        if callback not in (None, *found):
            found.append(callback)
    if not found:
        raise ImportError(
            "kineto_step_tracker.integrations.lightning needs Lightning: "
            "pip install 'kineto-step-tracker[lightning]'",
            name="lightning",
        )
    return tuple(found)


if TYPE_CHECKING:
    # For type checkers it fits the Trainer under either name.
    from typing import Any as Callback
else:
    Callback = types.new_class("Callback", _callback_classes())


class KinetoStepCallback(Callback):
    """Counts the iterations of ``Trainer.fit`` with the tracker.

    Lightning's own ``trainer.global_step`` counts every ``step()`` of every optimizer, so a GAN
    under manual optimisation takes two of its steps a batch. The tracker's step is the largest
    count of any optimizer: one a batch, if some optimizer steps once in each and none more often.
    Where ``KINETO_USE_DAEMON`` is set, a ``PyTorchProfiler`` in the Trainer counts too, and counts
    the batches of validation as well.

    For the length of a ``fit`` the tracker is installed, as by
    `kineto_step_tracker.pytorch.installed`. At its end, by an exception too, it is taken out
    again unless others hold it, and the requesters of the trainer's optimizers are erased. If
    another callback's ``on_exception`` raises, Lightning calls none of those after it, and the
    tracker may stay until this callback's next ``fit`` or `kineto_step_tracker.pytorch.uninstall`.

    The step is logged with each training batch, as Lightning's ``self.log`` does: to the logger
    each ``log_every_n_steps``, and to ``trainer.callback_metrics``; not in barebones mode. It is
    that of the process, the one in traces, and never falls: a second ``fit`` goes on from the
    first one's, and the steps of the finders of learning rates and batch sizes stay in it.

    It is in each checkpoint, and ``fit(ckpt_path=...)`` goes on from it. Kineto's own count of
    iterations begins at 0 in each process all the same. With several ranks the checkpoint has the
    step of the one that wrote it, and all of them go on from that.

    Args:
        metric: the name to log the step under. None: it is not logged.
        kineto: whether a rise calls Kineto's ``step()``, as for
            `kineto_step_tracker.pytorch.install`.

    Raises:
        TypeError: ``metric`` is neither a str nor None, or ``kineto`` neither a bool nor None.
        RuntimeError: from ``fit``, if PyTorch lacks what the tracker needs, or if the callback is
            in the ``fit`` of another Trainer.

    >>> KinetoStepCallback(metric="step")
    KinetoStepCallback(metric='step', kineto=None)
    """

    def __init__(self, *, metric: str | None = "kineto_step", kineto: bool | None = None) -> None:
        if metric is not None and not isinstance(metric, str):
            raise TypeError(f"metric must be a str or None, not {metric!r}")
        super().__init__()
        self.metric = metric
        self._steps = TrainingSteps(kineto=kineto)
        # Whose fit is counted. Another Trainer with this callback, which may validate in the
        # middle of that, must not end it. Weak, so that one that was given up is no hindrance.
        self._trainer: weakref.ref[Any] | None = None

    @property
    def step(self) -> int:
        """The global step."""
        return self._steps.step

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Install the tracker, if it is training that begins."""
        if stage == "fit":
            owner = self._owner()
            # An interrupted one is over, though another callback kept this one from being told.
            if owner not in (None, trainer) and not owner.interrupted:
                raise RuntimeError(
                    f"{self!r} is in the fit of another Trainer: make one for each Trainer"
                )
            self._steps.begin()
            self._trainer = weakref.ref(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the step."""
        if self.metric is not None and not trainer.barebones:
            # As float32, which Lightning would make of an int, it stops at 2**24.
            step = torch.tensor(self.step, dtype=torch.float64)
            pl_module.log(self.metric, step, on_step=True, on_epoch=False, batch_size=1)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the tracker out again."""
        if stage == "fit":
            self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take the tracker out again, since Lightning calls no ``teardown`` then."""
        self._end(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return what goes into a checkpoint."""
        return self._steps.state_dict()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Go on from a checkpoint; not for validating, testing or predicting from one."""
        # Not load_state_dict, which is not told what the checkpoint is for.
        state = checkpoint["callbacks"].get(self.state_key)
        if state is not None and trainer.state.fn == "fit":
            self._steps.load_state_dict(state)

    def _owner(self) -> Any:
        return None if self._trainer is None else self._trainer()

    def _end(self, trainer: Any) -> None:
        if self._owner() is trainer:
            self._trainer = None
            self._steps.end(trainer.optimizers)

    def __getstate__(self) -> dict[str, Any]:
        # A copy begins outside of any training.
        return vars(self) | {"_steps": copy.copy(self._steps), "_trainer": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(metric={self.metric!r}, kineto={self._steps.kineto})"
