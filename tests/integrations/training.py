"""Small trainings for the tests of the integrations, and what each of them is to leave behind."""

from __future__ import annotations

import copy
import pickle
from typing import TypeVar

import torch
from torch.autograd import profiler

from kineto_step_tracker import KinetoStepTracker, pytorch


def left_behind() -> dict[str, object]:
    """What a training that is over must not have left."""
    return {
        "installed": pytorch.is_installed(),
        "counts": KinetoStepTracker.step_counts(),
        "holders": len(pytorch._holders),
        # The count of PyTorch's own hook, which is there where KINETO_USE_DAEMON is set.
        "handed over": profiler.KinetoStepTracker._step_dict.keys() - {"Optimizer"},
    }


Copied = TypeVar("Copied")

NOTHING = {"installed": False, "counts": {}, "holders": 0, "handed over": set()}


def as_a_new_process() -> None:
    """Both counts at 0, as a process finds them that is to resume a training."""
    KinetoStepTracker.reset()
    profiler.KinetoStepTracker._current_step = 0


def batches(number: int) -> torch.utils.data.DataLoader[torch.Tensor]:
    return torch.utils.data.DataLoader(torch.randn(4 * number, 8), batch_size=4)  # type: ignore[arg-type]


def copies(original: Copied) -> list[Copied]:
    """One made in each way that there is."""
    return [copy.copy(original), copy.deepcopy(original), pickle.loads(pickle.dumps(original))]
