"""What does importing the package add to the start of Python?

    python benchmarks/start_up.py --fast

pyperf times whole processes; ``--help`` shows its options.
"""

from __future__ import annotations

import sys

import pyperf


def main() -> None:
    runner = pyperf.Runner()
    for program in ("pass", "import kineto_step_tracker", "import typing"):
        runner.bench_command(f"python -c '{program}'", [sys.executable, "-c", program])


if __name__ == "__main__":
    main()
