"""Has a ratio been lost? Fails where a target is missed grossly, by a factor of two or three.

    python benchmarks/guard.py

For CI: noise never fails it, nor a target missed by little. It runs what
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
            return
    sys.exit(f"lost: {'; '.join(verdict.target.text for verdict in lost)}")


if __name__ == "__main__":
    main()
