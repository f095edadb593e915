"""What does a step cost on one thread: no rise, and a rise with an empty callback?

    python benchmarks/increments.py --fast

pyperf times each contender in processes of its own; ``--help`` shows its options.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pyperf

from kineto_step_tracker.bench.clocks import Work
from kineto_step_tracker.bench.steps import works

FEW = 4


def seconds(times: int, make: Callable[[], Work]) -> float:
    return make().time(times)


def main() -> None:
    runner = pyperf.Runner()
    for key, make in works().items():
        if key.x <= FEW:
            # Made once, and only in the processes that time it.
            runner.bench_time_func(f"{key.question}: {key.contender}", seconds, cache(make))


if __name__ == "__main__":
    main()
