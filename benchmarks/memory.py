"""How many bytes does a requester take, beside an entry in the dict of PyTorch's class?

python benchmarks/memory.py
"""

from __future__ import annotations

from kineto_step_tracker.bench import environment
from kineto_step_tracker.bench.footprint import memory
from kineto_step_tracker.bench.report import in_words, ran_on


def main() -> None:
    print(ran_on(environment()))
    for requesters in (10, 100, 1_000, 10_000, 100_000):
        for key, row in memory(requesters).items():
            print(in_words(key, row))


if __name__ == "__main__":
    main()
