"""One step for all ranks of a job, on the store that `torch.distributed` has anyway.

It imports PyTorch and, of this package, the drop-in only. Each rank has a tracker of its own. A
thread in each publishes its step in the store, and the ranks raise the step of the job there by
compare-and-swap, as threads raise the global step in one process: the one that wins runs the
callback. Counting never waits for any of this, and never fails because of it.

``step`` holds what a rank uses, ``rises`` the algorithm, ``board`` what stands where in the store,
``connection`` how it is reached, ``observer`` the look from outside.
"""

try:
    import torch.distributed
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "kineto_step_tracker.fleet needs PyTorch: pip install 'kineto-step-tracker[torch]'",
        name="torch",
    ) from error

if not torch.distributed.is_available():
    raise ImportError(
        "kineto_step_tracker.fleet needs a PyTorch that is built with torch.distributed",
        name="torch.distributed",
    )

from kineto_step_tracker.fleet.board import FleetError
from kineto_step_tracker.fleet.observer import Observer, RankView, View, open_store
from kineto_step_tracker.fleet.step import FleetStep, RankStep, Steps

__all__ = [
    "FleetError",
    "FleetStep",
    "Observer",
    "RankStep",
    "RankView",
    "Steps",
    "View",
    "open_store",
]
