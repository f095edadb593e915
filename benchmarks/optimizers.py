"""What does counting add to an optimizer's step, and to a backward that steps 300 optimizers?

    python benchmarks/optimizers.py --turns 20

Besides whole iterations it times the hooks alone, where they are called. Needs PyTorch.
"""

from __future__ import annotations

import argparse

from rich.progress import Progress

from kineto_step_tracker.bench import environment
from kineto_step_tracker.bench.optimizers import measure
from kineto_step_tracker.bench.report import in_words, ran_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=20, help="measurements of each hook")
    chosen = parser.parse_args()
    with Progress(transient=True, auto_refresh=False) as bar:
        task = bar.add_task("optimizers", total=1)
        values = measure(
            chosen.turns, lambda share: bar.update(task, completed=share, refresh=True)
        )
    print(ran_on(environment()))
    for key, row in values.items():
        print(in_words(key, row))


if __name__ == "__main__":
    main()
