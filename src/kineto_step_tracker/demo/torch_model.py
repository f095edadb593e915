"""The demo's model in PyTorch: its optimizers are counted by the hook that users install.

It imports PyTorch, the task and ``kineto_step_tracker.pytorch``. It computes what
`numpy_model` computes, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.autograd import profiler

from kineto_step_tracker import KinetoStepTracker, pytorch
from kineto_step_tracker.demo.account import CallbackLog, StepCounts
from kineto_step_tracker.demo.task import Array, Digits, Replica

library = f"PyTorch {torch.__version__}"


@contextmanager
def replicas(
    number: int, weights: list[Array], log: CallbackLog, mirror: Callable[[str], object]
) -> Iterator[tuple[StepCounts, list[Replica]]]:
    in_profiler = vars(profiler)
    kineto_step = in_profiler["_kineto_step"]
    threads = torch.get_num_threads()
    # Kineto is to hear nothing of all this, and the log nothing before the training starts.
    in_profiler["_kineto_step"] = lambda: None
    # The replicas share the cores; threads inside their small operations would only get in the way.
    torch.set_num_threads(1)
    try:
        with pytorch.installed(kineto=True):
            made: list[Replica] = [_Perceptron(weights, mirror) for _ in range(number)]
            # Registering the optimizers has taken steps; the training starts from 0.
            KinetoStepTracker._current_step = 0
            in_profiler["_kineto_step"] = log.kineto_step
            yield KinetoStepTracker, made
    finally:
        torch.set_num_threads(threads)
        in_profiler["_kineto_step"] = kineto_step


class _Perceptron:
    """A network of two layers: SGD moves the first one, Adam the second."""

    def __init__(self, weights: list[Array], mirror: Callable[[str], object]) -> None:
        outputs, inputs = weights[0].shape
        self._layers = nn.Sequential(
            nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, len(weights[-1]))
        )
        self._weights = list(self._layers.parameters())
        with torch.no_grad():
            for mine, weight in zip(self._weights, weights, strict=True):
                mine.copy_(torch.from_numpy(weight))
        sgd = torch.optim.SGD(self._weights[:2], lr=0.05, momentum=0.9)
        adam = torch.optim.Adam(self._weights[2:], lr=0.001)
        self.optimizers: dict[str, Callable[[], object]] = {
            _count(optimizer, mirror): optimizer.step for optimizer in (sgd, adam)
        }

    def backward(self, digits: Digits) -> tuple[float, list[Array]]:
        loss = self._loss(digits)
        gradients = torch.autograd.grad(loss, self._weights)
        return loss.item(), [gradient.numpy() for gradient in gradients]

    def receive(self, gradients: list[Array]) -> None:
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = torch.from_numpy(gradient)

    @torch.no_grad()
    def evaluate(self, digits: Digits) -> tuple[float, float]:
        recognised = self._layers(torch.from_numpy(digits.images)).argmax(dim=1).numpy()
        return self._loss(digits).item(), float((recognised == digits.labels).mean())

    def _loss(self, digits: Digits) -> torch.Tensor:
        scores = self._layers(torch.from_numpy(digits.images))
        return nn.functional.cross_entropy(scores, torch.from_numpy(digits.labels))


def _count(optimizer: torch.optim.Optimizer, mirror: Callable[[str], object]) -> str:
    """Register the optimizer, by a step that has no gradients yet; return its requester."""
    before = KinetoStepTracker.step_counts()
    optimizer.step()
    (requester,) = KinetoStepTracker.step_counts().keys() - before.keys()

    def count_in_mirror(*_: object) -> None:
        mirror(requester)

    optimizer.register_step_post_hook(count_in_mirror)
    return requester
