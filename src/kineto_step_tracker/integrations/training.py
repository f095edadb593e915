"""The steps of one training: counted while it runs, saved and restored with its checkpoints.

It imports ``kineto_step_tracker.pytorch`` and the drop-in. What the callbacks for frameworks have
in common is here, in a form that a loop of one's own can use too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from kineto_step_tracker import KinetoStepTracker, pytorch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from torch.optim import Optimizer

__all__ = ["TrainingSteps"]


class TrainingSteps:
    """The tracker in PyTorch for the length of a training, and its step in the checkpoints.

    A context manager. Whatever else has the tracker installed keeps it: this is one more holder,
    as `kineto_step_tracker.pytorch.installed` is. `state_dict` and `load_state_dict` are what
    accelerate's ``register_for_checkpointing`` and ``torch.distributed.checkpoint`` ask for.

    The step is that of the process, the one in traces. It never falls, so a second training in
    the same process goes on from the first one's step. Each rank of a job counts its own, but
    those checkpoints hold the step of one rank, and all ranks go on from that.

    One object is for one training at a time.

    Args:
        kineto: whether a rise calls Kineto's ``step()``, as for
            `kineto_step_tracker.pytorch.install`.

    Raises:
        TypeError: ``kineto`` is neither a bool nor None.
        RuntimeError: from the ``with`` statement, as `begin` does, or if a training is running.

    Not thread-safe, though any number of threads may step meanwhile. Copies and pickles begin
    outside of any training.

    >>> import torch
    >>> from kineto_step_tracker.integrations.training import TrainingSteps
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    >>> with TrainingSteps() as steps:
    ...     steps.load_state_dict({"step": 1000})
    ...     optimizer.step()
    ...     steps.state_dict()
    {'step': 1001}
    """

    def __init__(self, *, kineto: bool | None = None) -> None:
        if kineto is not None and not isinstance(kineto, bool):
            raise TypeError(f"kineto must be a bool or None, not {kineto!r}")
        self.kineto = kineto
        self._hold: ExitStack | None = None

    @property
    def running(self) -> bool:
        """Whether a training has begun and has not ended."""
        return self._hold is not None

    @property
    def step(self) -> int:
        """The global step."""
        return KinetoStepTracker.current_step()

    def begin(self) -> None:
        """Install the tracker. A training that never came to its end is ended first.

        Raises:
            RuntimeError: as `kineto_step_tracker.pytorch.install` does.
        """
        self.end()
        with ExitStack() as hold:
            hold.enter_context(pytorch.installed(self.kineto))
            self._hold = hold.pop_all()

    def end(self, optimizers: Iterable[Optimizer] = ()) -> None:
        """Take the tracker out again, unless others hold it. Without a training nothing happens.

        Args:
            optimizers: those of the training, whose requesters are erased. The frameworks keep
                them when it is over, and others who hold the tracker would go on seeing them.
        """
        hold, self._hold = self._hold, None
        if hold is not None:
            with hold:
                for optimizer in optimizers:
                    pytorch._erase(optimizer)

    def state_dict(self) -> dict[str, int]:
        """Return what a checkpoint is to hold: ``{"step": the global step}``."""
        return {"step": self.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's step, if that is above the global step.

        Kineto is not called for the steps between, which another process took, so its own count
        of iterations still begins at 0 in each process. Requesters that are registered already
        go on from the new step. Exact only while no other thread steps.

        Args:
            state_dict: what the method of that name returned.

        Raises:
            TypeError: it is no mapping, or the step no int.
            ValueError: there is no ``"step"`` in it, or that is not from 0 to 2**62.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict must be a mapping, not {state_dict!r:.60}")
        if "step" not in state_dict:
            raise ValueError(f'state_dict must have the key "step", not {list(state_dict)!r:.60}')
        step = state_dict["step"]
        if isinstance(step, bool):
            raise TypeError(f"step must be an int, not bool ({step})")
        if isinstance(step, int) and 0 <= step <= self.step:
            return
        # Not an increment, which would call Kineto. It refuses what is no step.
        KinetoStepTracker._current_step = step
        for requester in KinetoStepTracker.step_counts():
            # It would have to catch up first, before its steps raise the global one again.
            KinetoStepTracker.init_step_count(requester)
            if (claim := pytorch._names.get(requester)) is not None:
                # Its next step is its first, and other optimizers' first ones are to join it.
                claim.start = step

    def __enter__(self) -> Self:
        if self.running:
            # The inner statement's end would be the outer one's.
            raise RuntimeError(f"{self!r} is in use: make one TrainingSteps for each training")
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def __getstate__(self) -> dict[str, Any]:
        return {"kineto": self.kineto, "_hold": None}

    def __repr__(self) -> str:
        running = "running" if self.running else "not running"
        return f"<TrainingSteps at step {self.step}, kineto={self.kineto}, {running}>"
