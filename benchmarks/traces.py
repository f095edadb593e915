"""How many iterations does a trace of ten hold, with PyTorch's own class and with this tracker?

    python benchmarks/traces.py --json docs/benchmarks/traces.json --plot docs/benchmarks/traces.svg

Trains in many ways at once, each in a process of its own, asks all of them for ten iterations, and
counts those in their trace files by what `record_function` named, apart from what any tracker
says. Takes a minute. Needs PyTorch and, for a picture, matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kineto_step_tracker.on_demand import Recording, Report, Request, Trace, read, trace

TRACKERS = ("ours", "pytorch")
MARK = "iteration#"
# Between iterations: without it so many processes would hold each other up for minutes.
_PAUSE = 0.02


class Going:
    """Until whoever started this process closes its standard input."""

    def __bool__(self) -> bool:
        time.sleep(_PAUSE)
        return not select.select([sys.stdin], [], [], 0)[0]


@contextmanager
def iteration(number: int) -> Iterator[None]:
    """Mark an iteration in the trace, and say once that training has begun."""
    import torch

    with torch.profiler.record_function(f"{MARK}{number}"):
        yield
    if number == 0:
        # In one piece, since several threads may come here at once.
        sys.stdout.write("begun\n")
        sys.stdout.flush()


def _one(going: Going) -> None:
    import torch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    number = 0
    while going:
        with iteration(number):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        number += 1


def _two(going: Going) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    first = torch.optim.SGD(model[0].parameters())
    second = torch.optim.AdamW(model[1].parameters())
    number = 0
    while going:
        with iteration(number):
            model(torch.ones(2, 4)).sum().backward()
            first.step()
            second.step()
        number += 1


def _gan(going: Going) -> None:
    """The critic steps five times for each step of the generator, so it is what counts."""
    import torch

    generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    slow = torch.optim.Adam(generator.parameters())
    fast = torch.optim.RMSprop(critic.parameters())
    number = 0
    while going:
        with iteration(number):
            critic(generator(torch.ones(2, 4))).sum().backward()
            fast.step()
            if number % 5 == 4:
                slow.step()
        number += 1


def _threads(going: Going) -> None:
    """Four replicas in lockstep, each with an optimizer of its own."""
    import torch

    go_on = True

    def look() -> None:
        nonlocal go_on
        go_on = bool(going)

    together = threading.Barrier(4, action=look)

    def train() -> None:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        number = 0
        while together.wait() is not None and go_on:
            with iteration(number):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            number += 1

    replicas = [threading.Thread(target=train) for _ in range(4)]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.join()


def _backward(going: Going) -> None:
    """Fifty parameters, each with an optimizer that steps as soon as its gradient is there."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(25)))
    optimizers = {weight: torch.optim.SGD([weight]) for weight in model.parameters()}
    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda weight: optimizers[weight].step()
        )
    number = 0
    while going:
        with iteration(number):
            model(torch.ones(2, 4)).sum().backward()
        number += 1


def _profiler(going: Going) -> None:
    """A profiler whose schedule is idle is stepped beside the optimizer."""
    import torch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    idle = torch.profiler.schedule(wait=10**9, warmup=1, active=1)
    number = 0
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=idle
    ) as profile:
        while going:
            with iteration(number):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                profile.step()
            number += 1


def _loader(going: Going) -> None:
    """Two workers, forked again for every epoch, load the data."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    data = TensorDataset(torch.ones(400, 4))
    number = 0
    while going:
        for (batch,) in DataLoader(data, batch_size=2, num_workers=2):
            with iteration(number):
                model(batch).sum().backward()
                optimizer.step()
            number += 1
            if not going:
                return


@dataclass(frozen=True)
class Kind:
    """A way to train, in words, and how many optimizers step in each iteration of each thread."""

    text: str
    train: Callable[[Going], None]
    optimizers: int = 1


KINDS = {
    "one": Kind("one optimizer", _one),
    "two": Kind("two optimizers", _two, 2),
    "gan": Kind("critic and generator, 5 steps to 1", _gan),
    "threads": Kind("4 data-parallel threads, one optimizer each", _threads),
    "backward": Kind("50 optimizers in the backward", _backward, 50),
    "profiler": Kind("one optimizer and `profile().step()`", _profiler),
    "loader": Kind("one optimizer, data from 2 forked workers", _loader),
}


def train(kind: str, tracker: str) -> None:
    """Be the process that trains."""
    import torch.profiler  # noqa: F401

    if tracker == "ours":
        from kineto_step_tracker import pytorch

        pytorch.install()
    KINDS[kind].train(Going())


@contextmanager
def training(kind: str, tracker: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start such a process, whose sockets are in the folder, and end it."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--train", kind, tracker],
        env={
            **os.environ,
            "KINETO_USE_DAEMON": "1",
            "KINETO_IPC_SOCKET_DIR": str(folder),
            "KINETO_LOG_LEVEL": "99",
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(60)


def found(recorded: Trace, kind: Kind) -> list[int]:
    """Return how many whole iterations each thread of a trace holds, all optimizers included."""
    begun = Counter(span.thread for span in recorded.annotations if span.name.startswith(MARK))
    steps = Counter(span.thread for span in recorded.optimizers)
    return sorted(
        min(number, steps[thread] // kind.optimizers) for thread, number in begun.items()
    ) or [0]


def run(
    output: Path, iterations: int, watch: Callable[[str], object]
) -> dict[tuple[str, str], Recording]:
    """Train in every way with every tracker, and ask all for a trace."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        processes = {
            (kind, tracker): cleanup.enter_context(training(kind, tracker, folder))
            for kind in KINDS
            for tracker in TRACKERS
        }
        for (kind, tracker), process in processes.items():
            assert process.stdout is not None
            said = process.stdout.readline()
            if said != "begun\n":
                raise RuntimeError(f"training {kind} with {tracker} said {said!r}")
            watch(f"{KINDS[kind].text}, {tracker}: training")

        def say(report: Report) -> None:
            states = Counter(recording.state for recording in report.recordings)
            watch(", ".join(f"{number} {state}" for state, number in states.items()) or "asking")

        report = trace(
            Request(iterations=iterations),
            output=output,
            pids=[process.pid for process in processes.values()],
            socket_folder=folder,
            watch=say,
        )
    by_pid = {recording.pid: recording for recording in report.recordings}
    return {which: by_pid[process.pid] for which, process in processes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=10, help="how many to ask for")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--plot", type=Path, help="draw the traces of two optimizers to this file")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.train:
        train(*chosen.train)
        return
    console = Console()
    rows = []
    with tempfile.TemporaryDirectory() as output:
        with console.status("starting") as status:
            recordings = run(Path(output), chosen.iterations, status.update)
        read_again = {
            which: read(recording.file)
            for which, recording in recordings.items()
            if recording.file is not None
        }
        for (kind, tracker), recording in recordings.items():
            file = read_again.get((kind, tracker))
            rows.append(
                {
                    "kind": kind,
                    "training": KINDS[kind].text,
                    "tracker": tracker,
                    "asked": chosen.iterations,
                    "found": [] if file is None else found(file, KINDS[kind]),
                    "state": recording.state,
                    "steps": [recording.first, recording.last],
                    "optimizers": recording.optimizers,
                }
            )
        if chosen.plot:
            from kineto_step_tracker.on_demand.drawing import draw

            draw(
                [
                    (
                        "PyTorch's own class: ten steps are five iterations",
                        read_again["two", "pytorch"],
                    ),
                    ("this tracker", read_again["two", "ours"]),
                ],
                chosen.plot,
                f"A trace of {chosen.iterations} iterations with two optimizers",
            )
    table = Table("training", *TRACKERS, title=f"iterations in a trace of {chosen.iterations}")
    for text, kind in ((kind.text, name) for name, kind in KINDS.items()):
        table.add_row(text, *(_range(row["found"]) for row in rows if row["kind"] == kind))
    console.print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


def _range(numbers: object) -> str:
    assert isinstance(numbers, list)
    if not numbers:
        return "no file"
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


if __name__ == "__main__":
    main()
