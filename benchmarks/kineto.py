"""What does a rise cost that steps the real Kineto, as with KINETO_USE_DAEMON=1?

    python benchmarks/kineto.py

PyTorch's class, the drop-in class, and that installed into PyTorch, where it also asks whether a
trace is recorded, to mark the step in it. No trace is. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import os
from statistics import median

# As the daemon's presence would: libkineto looks at it when PyTorch is loaded. Where its sockets
# would be there is nobody, so it finds no daemon to ask.
os.environ.update(KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=os.devnull, KINETO_LOG_LEVEL="99")

import torch.profiler

from kineto_step_tracker import KinetoStepTracker, pytorch
from kineto_step_tracker.bench import environment
from kineto_step_tracker.bench.clocks import Work, in_turns
from kineto_step_tracker.bench.report import human, ran_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=25, help="measurements of each")
    chosen = parser.parse_args()
    theirs = torch.autograd.profiler.KinetoStepTracker
    # Its step as it is now: install() makes another of it.
    stock = Work("step('Optimizer')", {"step": theirs.increment_step})
    ours = Work("Tracker.increment_step('Optimizer')", {"Tracker": KinetoStepTracker})
    works = {
        "PyTorch's class": stock,
        "drop-in class": ours,
        "drop-in class, installed": Work(ours.statement, ours.names, pytorch.installed),
    }
    values = in_turns(works, chosen.turns)
    print(ran_on(environment()))
    for name, row in values.items():
        ratio = median(
            theirs / this for theirs, this in zip(values["PyTorch's class"], row, strict=True)
        )
        print(f"{name:<26}{human(median(row), 's'):>8} a rise, {ratio:.2f} x PyTorch's speed")


if __name__ == "__main__":
    main()
