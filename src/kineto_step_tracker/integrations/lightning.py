"""A callback for Lightning's ``Trainer``.

It imports Lightning under the name under which it is loaded already, ``lightning.pytorch`` or
``pytorch_lightning``, and otherwise the one that is installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from kineto_step_tracker.integrations.training import TrainingSteps

if TYPE_CHECKING:
    # For type checkers it fits the Trainer under either name.
    from typing import Any as Callback
else:

    def _callback_class() -> type:
        names = ["lightning.pytorch", "pytorch_lightning"]
        names.sort(key=sys.modules.__contains__, reverse=True)
        for name in names:
            try:
                return import_module(name).Callback
            except ModuleNotFoundError as error:
                if error.name not in (name, name.partition(".")[0]):
                    raise
        raise ImportError(
            "kineto_step_tracker.integrations.lightning needs Lightning: "
            "pip install 'kineto-step-tracker[lightning]'",
            name="lightning",
        )

    Callback = _callback_class()

__all__ = ["KinetoStepCallback"]


class KinetoStepCallback(Callback):
    """Counts the iterations of ``Trainer.fit`` with the tracker.

    Lightning's own ``trainer.global_step`` counts every ``step()`` of every optimizer, so a GAN
    under manual optimisation takes two of its steps a batch. The tracker counts one.

    For the length of a ``fit`` the tracker is installed, as by
    `kineto_step_tracker.pytorch.installed`. At its end, by an exception too, it is taken out
    again unless others hold it, and the requesters of the trainer's optimizers are erased.

    The step is logged with each training batch, as Lightning's ``self.log`` does: to the logger
    each ``log_every_n_steps``, and to ``trainer.callback_metrics``. It is that of the process,
    the one in traces, and never falls: a second ``fit`` goes on from the first one's.

    It is in each checkpoint, and ``fit(ckpt_path=...)`` goes on from it. Kineto's own count of
    iterations begins at 0 in each process all the same. With several ranks the checkpoint has the
    step of the one that wrote it, and all of them go on from that.

    Args:
        metric: the name to log the step under. None: it is not logged.
        kineto: whether a rise calls Kineto's ``step()``, as for
            `kineto_step_tracker.pytorch.install`.

    Raises:
        TypeError: ``metric`` is neither a str nor None, or ``kineto`` neither a bool nor None.
        RuntimeError: from ``fit``, if PyTorch lacks what the tracker needs.

    >>> KinetoStepCallback(metric="step")
    KinetoStepCallback(metric='step', kineto=None)
    """

    def __init__(self, *, metric: str | None = "kineto_step", kineto: bool | None = None) -> None:
        if metric is not None and not isinstance(metric, str):
            raise TypeError(f"metric must be a str or None, not {metric!r}")
        super().__init__()
        self.metric = metric
        self._steps = TrainingSteps(kineto=kineto)

    @property
    def step(self) -> int:
        """The global step."""
        return self._steps.step

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Install the tracker, if it is training that begins."""
        if stage == "fit":
            self._steps.begin()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the step."""
        if self.metric is not None:
            # As float32, which Lightning would make of an int, it stops at 2**24.
            step = torch.tensor(self.step, dtype=torch.float64)
            pl_module.log(self.metric, step, on_step=True, on_epoch=False, batch_size=1)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the tracker out again."""
        self._steps.end(trainer.optimizers)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take the tracker out again, since Lightning calls no ``teardown`` then."""
        self._steps.end(trainer.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return what goes into a checkpoint."""
        return self._steps.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint; not for validating, testing or predicting from one."""
        if self._steps.running:
            self._steps.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(metric={self.metric!r}, kineto={self._steps.kineto})"
