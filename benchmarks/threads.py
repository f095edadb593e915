"""How many steps a second do threads reach together, sharing one requester or with one each?

    python benchmarks/threads.py --threads 1 2 4 8 --seconds 1 --turns 5

On a free-threaded Python it shows how far they hinder each other.
"""

from __future__ import annotations

import argparse

from rich.progress import Progress

from kineto_step_tracker.bench import environment
from kineto_step_tracker.bench.report import in_words, ran_on
from kineto_step_tracker.bench.threads import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8], metavar="NUMBER")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--turns", type=int, default=5, help="measurements of each contender")
    chosen = parser.parse_args()
    # Refreshed between measurements only: a thread that does it would be measured too.
    with Progress(transient=True, auto_refresh=False) as bar:
        task = bar.add_task("threads", total=1)
        values = measure(
            chosen.threads,
            chosen.turns,
            chosen.seconds,
            lambda share: bar.update(task, completed=share, refresh=True),
        )
    print(ran_on(environment()))
    for key, row in values.items():
        print(in_words(key, row))


if __name__ == "__main__":
    main()
