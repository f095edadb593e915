"""What a trace can be asked for, and the configuration that says so to Kineto.

It imports the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

# Kineto's own names in PyTorch 2.13. One that it does not know ends its reading of the
# configuration.
ACTIVITIES = (
    *("cpu_op", "user_annotation", "gpu_user_annotation", "gpu_memcpy", "gpu_memset", "kernel"),
    *("external_correlation", "cuda_runtime", "cuda_driver", "cpu_instant_event"),
    *("python_function", "overhead", "mtia_runtime", "mtia_ccp_events", "mtia_insight"),
    *("cuda_sync", "cuda_event", "mtia_counters", "glow_runtime", "cuda_profiler_range", "hpu_op"),
    *("xpu_runtime", "xpu_driver", "collective_comm", "privateuse1_runtime", "privateuse1_driver"),
)
# By what the iterations in a trace are counted: the tracker's marks and the optimizers' steps.
_COUNTED_BY = "user_annotation"

# Kineto counts in 32 bits.
_MOST = 2**31 - 1
# Kineto counts from 0, and a trace begins at the end of a step: where that was its 0, and so the
# first step of all, the first one recorded is the second.
_FIRST = 2
_KEY = re.compile(r"[A-Z][A-Z0-9_]*")
# Where a line of the configuration would end, or mean something else.
_UNSPEAKABLE = re.compile(r"[#=\x00-\x1f]")
# What Kineto puts into its files without escaping it, or takes for the ending of their names.
_NOT_IN_PATHS = re.compile(rf"{_UNSPEAKABLE.pattern}|[\"\\]|\.json")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A trace to ask for. Immutable, and checked when it is made.

    Args:
        iterations: how many steps of the training it is to hold, from 1.
        start: the first step to record, from 2 + ``warmup``: the step that raises
            ``KinetoStepTracker.current_step()`` to this number. A process that has passed it
            records its next ones instead, which is reported as wrong.
        align: record once Kineto's count is a multiple of this, from 1, so that ranks that step
            together record the same steps. Kineto's count is one less than the steps taken, so
            the first step recorded is two more than a multiple. Kineto asks every 5 s: ranks
            between whose asking a multiple passes record different ones, which is reported as
            wrong.
        warmup: for how many steps before the first, from 0, the profiler runs and records
            nothing.
        activities: which of `ACTIVITIES` to record; none for all that the process supports.
            "user_annotation" is added, since the iterations are counted by it.
        config: further lines of Kineto's configuration, such as
            ``{"PROFILE_WITH_STACK": "true"}``. Kineto ignores a key that it does not know. A value
            that it cannot read makes it ignore the lines behind it, of these. All of them stay in
            force in the process until another request says otherwise.

    With neither ``start`` nor ``align`` it begins after the step that is running when the process
    asks.

    Raises:
        TypeError, ValueError: an argument is of another type, or out of range.

    >>> Request(iterations=10, align=100).steps
    '10 steps, the first two after a multiple of 100'
    >>> Request(iterations=0)
    Traceback (most recent call last):
    ValueError: iterations must be from 1 to 2147483645, not 0
    """

    iterations: int
    start: int | None = None
    align: int | None = None
    warmup: int = 0
    activities: Sequence[str] = ()
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_number("iterations", self.iterations, 1, _MOST - _FIRST)
        _check_number("warmup", self.warmup, 0, _MOST - _FIRST - self.iterations)
        if self.start is not None:
            _check_number("start", self.start, _FIRST + self.warmup, _MOST - self.iterations)
        if self.align is not None:
            _check_number("align", self.align, 1, _MOST)
            if self.start is not None:
                raise ValueError("start and align exclude each other")
        if isinstance(self.activities, str) or not isinstance(self.activities, Sequence):
            raise TypeError(f"activities must be a sequence of names, not {self.activities!r}")
        for activity in self.activities:
            if activity not in ACTIVITIES:
                raise ValueError(
                    f"activities must not have {activity!r}; there are {', '.join(ACTIVITIES)}"
                )
        if not isinstance(self.config, Mapping):
            raise TypeError(f"config must be a mapping of text to text, not {self.config!r}")
        for key, value in self.config.items():
            _check_line(key, value)
        # Copies, which nobody changes behind the checks.
        object.__setattr__(self, "activities", tuple(self.activities))
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))

    @property
    def steps(self) -> str:
        """The steps asked for, in words."""
        if self.start is not None:
            return f"steps {self.start} to {self.start + self.iterations - 1}"
        if self.align is not None:
            return f"{self.iterations} steps, the first two after a multiple of {self.align}"
        return f"the next {self.iterations} steps"

    def configuration(self, file: Path) -> str:
        """Return what Kineto is to be told, which puts the process's id before ``.json``.

        All of it is said each time, also what is as usual: Kineto keeps the rest from the request
        before.

        >>> print(Request(iterations=10, start=1000).configuration(Path("/tmp/trace.json")))
        PROFILE_START_ITERATION=998
        PROFILE_START_ITERATION_ROUNDUP=1
        ACTIVITIES_WARMUP_ITERATIONS=0
        ACTIVITIES_ITERATIONS=10
        ACTIVITIES_DURATION_MSECS=0
        ACTIVITY_TYPES=
        ACTIVITIES_LOG_FILE=/tmp/trace.json
        """
        activities = self.activities and dict.fromkeys((*self.activities, _COUNTED_BY))
        lines = {
            "PROFILE_START_ITERATION": 0 if self.start is None else self.start - _FIRST,
            "PROFILE_START_ITERATION_ROUNDUP": self.align or 1,
            "ACTIVITIES_WARMUP_ITERATIONS": self.warmup,
            "ACTIVITIES_ITERATIONS": self.iterations,
            # Else a process that has not stepped yet would record half a second of whatever it
            # does, rather than refuse.
            "ACTIVITIES_DURATION_MSECS": 0,
            "ACTIVITY_TYPES": ",".join(activities),
            "ACTIVITIES_LOG_FILE": file,
            **self.config,
        }
        return "\n".join(f"{key}={value}" for key, value in lines.items())


def _check_number(name: str, number: object, least: int, most: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} must be an int, not {number!r}")
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {number}")


def _check_line(key: str, value: str) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(
            f"config must have keys in capitals such as PROFILE_WITH_STACK, not {key!r}"
        )
    ours = Request(iterations=1).configuration(Path()).splitlines()
    if any(line.startswith(f"{key}=") for line in ours):
        raise ValueError(f"config must not have {key}, which follows from the other arguments")
    if not isinstance(value, str) or _UNSPEAKABLE.search(value):
        raise ValueError(
            f"config must have values that are text without '#', '=' and line breaks; "
            f"{key} has {value!r}"
        )


def check_path(name: str, path: Path) -> None:
    """Refuse a folder that Kineto cannot write to."""
    found = _NOT_IN_PATHS.search(str(path))
    if found is not None:
        raise ValueError(
            f"{name} must be a path that Kineto can read, without {found.group()!r} in it; it is "
            f"{str(path)!r}"
        )
