"""How does the cost of a rise grow with the number of requesters, from 1 to 10 000?

    python benchmarks/requesters.py --fast

pyperf times each contender in processes of its own; ``--help`` shows its options.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pyperf

from kineto_step_tracker.bench import Question
from kineto_step_tracker.bench.clocks import Work
from kineto_step_tracker.bench.steps import works


def seconds(times: int, make: Callable[[], Work]) -> float:
    return make().time(times)


def main() -> None:
    runner = pyperf.Runner()
    for key, make in works().items():
        if key.question is Question.RISE:
            # Made once, and only in the processes that time it.
            runner.bench_time_func(f"requesters {key.x}: {key.contender}", seconds, cache(make))


if __name__ == "__main__":
    main()
