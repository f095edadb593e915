"""The demo: a real training run in data-parallel threads, counted, and the counts checked.

It imports the textbook tracker and its own rooms, with NumPy and scikit-learn, the extra
``demo``. The model it is given, `numpy_model` or `torch_model`, brings the tracker. It knows no
terminal.

Every thread trains a replica of one model on batches of its own, with two optimizers. At a
barrier behind the backward passes the gradients are averaged; then all optimizers step at once,
and no thread is ever an iteration ahead. So what is exact is known without asking a tracker:
after N iterations every count is N, the global step is N, and the callback has run once for
each step from 1 to N, in order, never two at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from statistics import fmean
from threading import Barrier, BrokenBarrierError

import numpy as np

from kineto_step_tracker.demo.account import Account, CallbackLog
from kineto_step_tracker.demo.task import Array, Digits, Model, Replica, initial_weights
from kineto_step_tracker.textbook import TextbookStepTracker

_BATCH = 32
_SECONDS_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class Progress:
    """The run at some moment; its numbers are read one after another while it goes on."""

    iteration: int
    loss: float
    counts: Mapping[str, int]
    global_step: int
    callbacks: int
    textbook_callbacks: int


@dataclass(frozen=True)
class Outcome:
    """What came of the run.

    Args:
        ours: the account that this project's tracker gives of it.
        textbook: the account of PyTorch's algorithm, which got the same calls a moment before.
        loss: the loss on the images that the model learned from, before and after.
        unseen: how many images it has never seen.
        accuracy: the share of these that it recognises.
    """

    ours: Account
    textbook: Account
    loss: tuple[float, float]
    unseen: int
    accuracy: float


def run(
    model: Model,
    threads: int,
    iterations: int,
    seed: int = 0,
    watch: Callable[[Progress], object] = lambda progress: None,
) -> Outcome:
    """Train in threads, and return what the trackers made of it.

    Args:
        model: the module `numpy_model` or `torch_model`. The latter counts in the process-wide
            tracker, and sets it to 0 first.
        threads: how many threads train, at least 1.
        iterations: how many iterations each of them trains, at least 1.
        seed: decides the images held out, the initial weights and the batches; 0 or more.
        watch: is called on this thread several times a second, and at the end. What it raises
            stops the training and leaves `run`, as does Ctrl-C; no thread is left behind.
    """
    rng = np.random.default_rng(seed)
    train, test = Digits.split(rng)
    training = _Training(train, threads, iterations, seed)
    ours, textbook = (CallbackLog(lambda: training.iteration) for _ in range(2))
    textbook_tracker = TextbookStepTracker(textbook.on_step)

    with model.replicas(
        threads, initial_weights(rng), ours, mirror=textbook_tracker.increment_step
    ) as (tracker, replicas):
        requesters = [name for replica in replicas for name in replica.optimizers]
        for name in requesters:
            textbook_tracker.init_step_count(name)

        def look() -> None:
            counts = tracker.step_counts()
            watch(
                Progress(
                    training.iteration,
                    training.loss,
                    {name: counts.get(name, 0) for name in requesters},
                    tracker.current_step(),
                    len(ours.steps),
                    len(textbook.steps),
                )
            )

        loss_before, _ = replicas[0].evaluate(train)
        taken = training.run(replicas, look)
        loss_after, _ = replicas[0].evaluate(train)
        _, accuracy = replicas[0].evaluate(test)
        return Outcome(
            ours=Account.of(tracker, ours, taken, iterations),
            textbook=Account.of(textbook_tracker, textbook, taken, iterations),
            loss=(loss_before, loss_after),
            unseen=len(test.labels),
            accuracy=accuracy,
        )


class _Training:
    """The threads, and the barrier that keeps them in step."""

    def __init__(self, digits: Digits, threads: int, iterations: int, seed: int) -> None:
        self.iteration = 0
        self.loss = math.nan
        self._digits = digits
        self._iterations = iterations
        self._seed = seed
        self._backward: list[tuple[float, list[Array]]] = [(math.nan, [])] * threads
        self._gradients: list[Array] = []
        self._barrier = Barrier(threads, self._average)

    def run(self, replicas: list[Replica], look: Callable[[], None]) -> Counter[str]:
        """Return how many steps each optimizer took, as its own thread counted them."""
        with ThreadPoolExecutor(len(replicas)) as pool:
            try:
                workers = [pool.submit(self._work, *of_rank) for of_rank in enumerate(replicas)]
                while wait(workers, _SECONDS_BETWEEN_LOOKS).not_done:
                    look()
            except BaseException:
                self._barrier.abort()
                raise
        taken = Counter[str]()
        for worker in workers:
            taken += worker.result()
        look()
        return taken

    def _work(self, rank: int, replica: Replica) -> Counter[str]:
        rng = np.random.default_rng([self._seed, rank])
        taken = Counter[str]()
        try:
            for _ in range(self._iterations):
                self._backward[rank] = replica.backward(self._digits.batch(rng, _BATCH))
                self._barrier.wait()
                replica.receive(self._gradients)
                for name, step in replica.optimizers.items():
                    step()
                    taken[name] += 1
        except BrokenBarrierError:
            pass  # Told to stop: by Ctrl-C, or because another thread failed, which will say so.
        except BaseException:
            self._barrier.abort()
            raise
        return taken

    def _average(self) -> None:
        """Run by one thread while the others wait at the barrier."""
        losses, gradients = zip(*self._backward, strict=True)
        self.loss = fmean(losses)
        self._gradients = [sum(each) / len(each) for each in zip(*gradients, strict=True)]
        self.iteration += 1
