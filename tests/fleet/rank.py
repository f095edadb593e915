"""A rank that trains a tiny model, and notes at once what its callback ran and what it sees.

It imports nothing of the tests, since torchrun starts it by its path.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import logging
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from kineto_step_tracker import KinetoStepTracker, pytorch
from kineto_step_tracker.fleet import FleetStep

INTERVAL = 0.05


class Diary:
    """A line of JSON for each note, in one write: what was noted survives a SIGKILL."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / f"{rank}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Ends what a life before this one may have been killed in the middle of.
        os.write(self._file, b"\n")

    def note(self, what: str, **rest: object) -> None:
        note = {"what": what, "at": time.monotonic(), **rest}
        os.write(self._file, json.dumps(note).encode() + b"\n")

    def view(self, fleet: FleetStep, what: str, **rest: object) -> None:
        steps = fleet.steps()
        self.note(
            what,
            step=fleet.current_step(),
            steps={rank: step for rank, (step, _) in steps.items()},
            ages={rank: age for rank, (_, age) in steps.items()},
            skew=fleet.skew(),
            stragglers=fleet.stragglers(),
            **rest,
        )


class Training:
    """A model and its optimizer, which counts from 0."""

    def __init__(self, diary: Diary, job: str, *, in_lockstep: bool = False) -> None:
        KinetoStepTracker.reset()
        self._diary, self._job = diary, job
        self._model: torch.nn.Module = torch.nn.Linear(4, 1)
        if in_lockstep:
            self._model = torch.nn.parallel.DistributedDataParallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def iterate(self, pause: float) -> None:
        self._optimizer.zero_grad()
        self._model(torch.ones(2, 4)).sum().backward()
        # Before it is counted, so that whoever has seen the step finds a note from before.
        self._diary.note("step", job=self._job, step=KinetoStepTracker.current_step() + 1)
        self._optimizer.step()
        time.sleep(pause)


def take_part(
    diary: Diary,
    job: str,
    rank: int,
    halves: list[int],
    *,
    every: int = 1,
    in_lockstep: bool = False,
) -> None:
    """Train as one rank of a job, looking at the others now and then, at half time, at the end.

    ``halves`` has each rank's number of iterations until half time, and has it again.
    """
    training = Training(diary, job, in_lockstep=in_lockstep)
    fleet = FleetStep(
        rank=rank,
        world_size=len(halves),
        every=every,
        on_step=lambda step: diary.note("ran", job=job, step=step),
        interval=INTERVAL,
        prefix=job,
    )
    dist.barrier()
    for half in (1, 2):
        for iteration in range(halves[rank]):
            training.iterate(0.3 / halves[rank])
            if iteration % 4 == 0:
                own = KinetoStepTracker.current_step()
                diary.note("saw", job=job, own=own, step=fleet.current_step())
        # Until all have trained, so that what is seen next can be known beforehand.
        dist.barrier()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            seen = {rank: step for rank, (step, _) in fleet.steps().items()}
            if seen == {rank: half * iterations for rank, iterations in enumerate(halves)}:
                break
        diary.view(fleet, "half", job=job, rank=rank, half=half)
        dist.barrier()
    fleet.close(60)


def torchrun(diary: Diary) -> None:
    """Three jobs' training, one after the other, but for the last two, which are at once."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    take_part(diary, "lockstep", rank, [10] * size, in_lockstep=True)
    take_part(diary, "free", rank, [5 * (1 + other) for other in range(size)])
    job, iterations, every = [("even", 6, 3), ("odd", 10, 4)][rank % 2]
    take_part(diary, job, rank // 2, [iterations] * (size // 2), every=every)
    dist.destroy_process_group()


def alone(diary: Diary, options: argparse.Namespace) -> None:
    """Train until there is a file named "stop", whatever becomes of the other ranks."""
    store = None
    if options.store is None:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        # So that to connect again fails several times while a test lasts, not once in a minute.
        dist.distributed_c10d._get_default_store().set_timeout(datetime.timedelta(seconds=1))
    else:
        store = TCPStore("127.0.0.1", options.store, wait_for_workers=False)

    def on_step(step: int) -> None:
        if step == options.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        diary.note("ran", job="alone", step=step)

    training = Training(diary, "alone")
    fleet = FleetStep(
        store, every=options.every, on_step=on_step, interval=INTERVAL, prefix="alone"
    )
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.2):
            diary.view(fleet, "seen")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        while not (options.folder / "stop").exists():
            if KinetoStepTracker.current_step() == options.holds_at:
                while not (options.folder / f"past-{options.holds_at}").exists():
                    time.sleep(0.02)
            training.iterate(options.pause)
    finally:
        is_over.set()
        watcher.join()
    if not options.unclosed:
        fleet.close(60)
    diary.note("end", step=KinetoStepTracker.current_step())


def lone(arguments: list[str], environment: dict[str, str], errors: Path) -> None:
    """Be a rank in a process that has been forked, and had its imports before."""
    os.environ.update(environment)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    main([*arguments, "--alone"])


def main(arguments: list[str] | None = None) -> None:
    # Whatever becomes of those who started it.
    faulthandler.dump_traceback_later(120, exit=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--store", type=int, help="a port; otherwise that of the process group")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--holds-at", type=int, help='at 25 until there is a file "past-25"')
    parser.add_argument("--dies-at", type=int)
    parser.add_argument("--unclosed", action="store_true", help="as the process ends")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="logged: %(message)s")
    pytorch.install(kineto=False)
    diary = Diary(options.folder, int(os.environ["RANK"]))
    diary.note("begin", pid=os.getpid())
    if options.alone:
        alone(diary, options)
    else:
        torchrun(diary)


if __name__ == "__main__":
    main()
