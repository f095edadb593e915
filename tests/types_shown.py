"""What type checkers and editors see of the public face: read by mypy and Pyright, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from typing import assert_type

from kineto_step_tracker import KinetoStepTracker, Requester, StepTracker, backend

tracker = StepTracker(on_step=print, start=0)
assert_type(tracker.init_step_count("a"), None)
assert_type(tracker.increment_step("a"), int)
assert_type(tracker.current_step(), int)
assert_type(tracker.step_counts(), dict[str, int])
assert_type(tracker.erase_step_count(requester="a"), bool)
assert_type(tracker.reset(step=3), None)
with tracker.requester(name="a") as handle:
    assert_type(handle, Requester)
    assert_type(handle.increment(), int)
    assert_type(handle.count, int | None)
    assert_type(handle.name, str)
    assert_type(handle.erase(), bool)

assert_type(KinetoStepTracker.init_step_count("a"), None)
assert_type(KinetoStepTracker.increment_step("a"), int)
assert_type(KinetoStepTracker.current_step(), int)
assert_type(KinetoStepTracker.step_counts(), dict[str, int])
assert_type(KinetoStepTracker.erase_step_count("a"), bool)
assert_type(KinetoStepTracker.requester("a"), Requester)
assert_type(KinetoStepTracker.reset(), None)
assert_type(backend, str)

# Each of these is an error, and one that ceased to be one would be reported.
StepTracker(on_step=3)  # type: ignore[arg-type]
StepTracker(start="3")  # type: ignore[arg-type]
tracker.increment_step(3)  # type: ignore[arg-type]
KinetoStepTracker.increment_step(3)  # type: ignore[arg-type]
