"""A callback for the ``Trainer`` of Hugging Face's transformers. It imports transformers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

from kineto_step_tracker.integrations.training import TrainingSteps

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ImportError(
        "kineto_step_tracker.integrations.transformers needs transformers: "
        "pip install 'kineto-step-tracker[transformers]'",
        name="transformers",
    ) from error

if TYPE_CHECKING:
    from types import TracebackType

    from torch.optim import Optimizer
    from transformers import TrainerControl, TrainerState, TrainingArguments

__all__ = ["KinetoStepCallback"]


class KinetoStepCallback(TrainerCallback, ExportableState):
    """Counts the iterations of ``Trainer.train`` with the tracker.

    For the length of a ``train`` the tracker is installed, as by
    `kineto_step_tracker.pytorch.installed`. At its end it is taken out again unless others hold
    it, and the requester of the trainer's optimizer is erased. Trainer tells its callbacks
    nothing of an exception. After one, the tracker stays until this callback's next training, or
    until its ``with`` statement is left::

        with KinetoStepCallback() as callback:
            Trainer(..., callbacks=[callback]).train()

    With ``restore_callback_states_from_checkpoint`` Trainer goes on with a callback of its own
    making, of which that statement knows nothing. Then the tracker stays until the trainer is
    garbage-collected, or until `kineto_step_tracker.pytorch.uninstall`.

    Trainer cannot tell it either whether a ``train`` begins within another one or after it. Use
    one callback for one training at a time.

    The step is added to what Trainer logs of the training, the entries with a ``"loss"``: in
    ``trainer.state.log_history``, and in what callbacks after this one are given. Those that
    ``report_to`` names come before it. Evaluations and the summary at the end go without, since
    Trainer returns those as its metrics and would take the step for one. It is the step of the
    process, the one in traces, and never falls: a second ``train`` goes on from the first one's.

    It is in each checkpoint, and ``train(resume_from_checkpoint=...)`` goes on from it. Kineto's
    own count of iterations begins at 0 in each process all the same. With several ranks the
    checkpoint has the step of the one that wrote it, and all of them go on from that.

    Args:
        metric: the name to log the step under. None: it is not logged.
        kineto: whether a rise calls Kineto's ``step()``, as for
            `kineto_step_tracker.pytorch.install`.

    Raises:
        TypeError: ``metric`` is neither a str nor None, or ``kineto`` neither a bool nor None.
        RuntimeError: from ``train``, if PyTorch lacks what the tracker needs.

    >>> KinetoStepCallback(metric="step")
    KinetoStepCallback(metric='step', kineto=None)
    """

    def __init__(self, *, metric: str | None = "kineto_step", kineto: bool | None = None) -> None:
        if metric is not None and not isinstance(metric, str):
            raise TypeError(f"metric must be a str or None, not {metric!r}")
        self.metric = metric
        self._steps = TrainingSteps(kineto=kineto)
        self._optimizer: Optimizer | None = None

    @property
    def step(self) -> int:
        """The global step."""
        return self._steps.step

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Install the tracker, and go on from the checkpoint if there is one."""
        self._end()
        # Read here, and not from what Trainer assigns to callbacks if it is told to, since by
        # default it is not. Of a training that does not resume, this is the step there is. A
        # checkpoint of one without this callback has nothing, but Trainer saves only under names
        # that are there.
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        for one in saved if isinstance(saved, list) else [saved]:
            # A subclass may save what it likes.
            if one and "saved" in one.get("attributes", {}):
                self._steps.load_state_dict(one["attributes"]["saved"])
        # After what may be refused, since nothing would take it out again.
        self._steps.begin()
        self._optimizer = optimizer

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the tracker out again."""
        self._end()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the step to what is logged of the training."""
        if self.metric is not None and self._steps.running and logs and "loss" in logs:
            logs[self.metric] = self.step
            if state.log_history:
                state.log_history[-1][self.metric] = self.step

    def state(self) -> dict[str, Any]:
        """Return what goes into a checkpoint, as Trainer wants it."""
        return {
            "args": {"metric": self.metric, "kineto": self._steps.kineto},
            "attributes": {"saved": self._steps.state_dict()},
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        # accelerate wraps it, and it is the one inside that steps.
        optimizer = getattr(self._optimizer, "optimizer", self._optimizer)
        self._optimizer = None
        self._steps.end(() if optimizer is None else (optimizer,))

    def __getstate__(self) -> dict[str, Any]:
        # A copy begins outside of any training.
        return vars(self) | {"_steps": copy.copy(self._steps), "_optimizer": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(metric={self.metric!r}, kineto={self._steps.kineto})"
