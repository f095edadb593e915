"""Counts training steps for PyTorch's profiler, exactly, whatever the threads.

>>> from kineto_step_tracker import StepTracker
>>> tracker = StepTracker(on_step=lambda step: print("step", step))
>>> tracker.increment_step("Optimizer1Step")
step 1
1
"""

from kineto_step_tracker._atomic import backend
from kineto_step_tracker.drop_in import KinetoStepTracker
from kineto_step_tracker.tracker import Requester, StepTracker

__all__ = ["KinetoStepTracker", "Requester", "StepTracker", "backend"]
