"""Has a ratio been lost? Fails where a target is missed grossly, by a factor of two or more.

    python benchmarks/guard.py

For CI: a target missed by little does not fail it, nor, as far as was seen, noise. It runs what
``kineto-step-tracker bench --quick`` runs, and again if that fails.
"""

from __future__ import annotations

import sys

from kineto_step_tracker import backend, bench

TRIES = 2


def main() -> None:
    if backend != "native":
        sys.exit("the targets are for the compiled package, and this is the portable one")
    lost: list[bench.Verdict] = []
    for _ in range(TRIES):
        report = bench.run(quick=True)
        lost = []
        for verdict in bench.verdicts(report):
            print(verdict)
            if verdict.grossly_missed:
                lost.append(verdict)
        if not lost:
            print("No ratio is lost.")
            return
    sys.exit(f"lost: {'; '.join(verdict.target.text for verdict in lost)}")


if __name__ == "__main__":
    main()
