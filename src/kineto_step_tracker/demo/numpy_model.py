"""The demo's model in NumPy, for machines without PyTorch: its training loop counts by handles.

It imports NumPy, the task and the tracker. It computes what `torch_model` computes, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from kineto_step_tracker import Requester, StepTracker
from kineto_step_tracker.demo.account import CallbackLog, StepCounts
from kineto_step_tracker.demo.task import Array, Digits, Replica

library = f"NumPy {np.__version__}"


@contextmanager
def replicas(
    number: int, weights: list[Array], log: CallbackLog, mirror: Callable[[str], object]
) -> Iterator[tuple[StepCounts, list[Replica]]]:
    tracker = StepTracker(log.on_step)
    yield (
        tracker,
        [
            _Perceptron(
                weights, tracker.requester(f"SGD#{rank}"), tracker.requester(f"Adam#{rank}"), mirror
            )
            for rank in range(1, number + 1)
        ],
    )


class _Perceptron:
    """A network of two layers: SGD moves the first one, Adam the second."""

    def __init__(
        self,
        weights: list[Array],
        sgd: Requester,
        adam: Requester,
        mirror: Callable[[str], object],
    ) -> None:
        self._weights = [weight.copy() for weight in weights]
        self._gradients = [np.zeros_like(weight) for weight in weights]
        sgd_step = _sgd(self._weights[:2], self._gradients[:2])
        adam_step = _adam(self._weights[2:], self._gradients[2:])

        def counted(step: Callable[[], None], requester: Requester) -> Callable[[], None]:
            def step_and_count() -> None:
                step()
                mirror(requester.name)
                requester.increment()

            return step_and_count

        self.optimizers: dict[str, Callable[[], object]] = {
            sgd.name: counted(sgd_step, sgd),
            adam.name: counted(adam_step, adam),
        }

    def backward(self, digits: Digits) -> tuple[float, list[Array]]:
        hidden, log_probabilities = self._forward(digits.images)
        by_output = np.exp(log_probabilities)
        by_output[np.arange(len(digits.labels)), digits.labels] -= 1
        by_output /= len(digits.labels)
        by_hidden = by_output @ self._weights[2] * (hidden > 0)
        return _loss(log_probabilities, digits), [
            by_hidden.T @ digits.images,
            by_hidden.sum(axis=0),
            by_output.T @ hidden,
            by_output.sum(axis=0),
        ]

    def receive(self, gradients: list[Array]) -> None:
        for mine, gradient in zip(self._gradients, gradients, strict=True):
            mine[...] = gradient

    def evaluate(self, digits: Digits) -> tuple[float, float]:
        _, log_probabilities = self._forward(digits.images)
        recognised = log_probabilities.argmax(axis=1)
        return _loss(log_probabilities, digits), float((recognised == digits.labels).mean())

    def _forward(self, images: Array) -> tuple[Array, Array]:
        """Return the hidden layer and the digits' log probabilities."""
        w1, b1, w2, b2 = self._weights
        hidden = np.maximum(images @ w1.T + b1, 0)
        scores = hidden @ w2.T + b2
        scores -= scores.max(axis=1, keepdims=True)
        return hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def _loss(log_probabilities: Array, digits: Digits) -> float:
    return float(-log_probabilities[np.arange(len(digits.labels)), digits.labels].mean())


def _sgd(weights: list[Array], gradients: list[Array]) -> Callable[[], None]:
    velocities = [np.zeros_like(weight) for weight in weights]

    def step() -> None:
        for weight, gradient, velocity in zip(weights, gradients, velocities, strict=True):
            velocity[...] = 0.9 * velocity + gradient
            weight[...] -= 0.05 * velocity

    return step


def _adam(weights: list[Array], gradients: list[Array]) -> Callable[[], None]:
    means = [np.zeros_like(weight) for weight in weights]
    squares = [np.zeros_like(weight) for weight in weights]
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        for weight, gradient, mean, square in zip(weights, gradients, means, squares, strict=True):
            mean[...] = 0.9 * mean + 0.1 * gradient
            square[...] = 0.999 * square + 0.001 * gradient**2
            unbiased_mean = mean / (1 - 0.9**steps)
            unbiased_square = square / (1 - 0.999**steps)
            weight[...] -= 0.001 * unbiased_mean / (np.sqrt(unbiased_square) + 1e-8)

    return step
