"""What is learned in the demo, scikit-learn's handwritten digits, and what a model has to offer.

It imports NumPy and scikit-learn, the extra ``demo``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from kineto_step_tracker.demo.account import CallbackLog, StepCounts

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_HELD_OUT = 360
_HIDDEN = 64


@dataclass(frozen=True)
class Digits:
    """1797 images of 8 by 8 pixels from 0 to 1, in rows of 64, and the digits that they show."""

    images: Array
    labels: Labels

    @classmethod
    def split(cls, rng: np.random.Generator) -> tuple[Digits, Digits]:
        """Return the images to train with and 360 to test with, told apart at random."""
        images, labels = load_digits(return_X_y=True)
        images = (images / 16).astype(np.float32)
        test, train = np.split(rng.permutation(len(labels)), [_HELD_OUT])
        return cls(images[train], labels[train]), cls(images[test], labels[test])

    def batch(self, rng: np.random.Generator, size: int) -> Digits:
        chosen = rng.integers(len(self.labels), size=size)
        return Digits(self.images[chosen], self.labels[chosen])


def initial_weights(rng: np.random.Generator) -> list[Array]:
    """Return weights and biases of the two layers, in PyTorch's order and shape."""

    def layer(inputs: int, outputs: int) -> list[Array]:
        weights = rng.normal(0, (2 / inputs) ** 0.5, (outputs, inputs))
        return [weights.astype(np.float32), np.zeros(outputs, np.float32)]

    return layer(64, _HIDDEN) + layer(_HIDDEN, 10)


class Replica(Protocol):
    """One thread's copy of the model, with two optimizers.

    ``optimizers`` has each optimizer's step under the name of its requester. A step counts
    itself: in the tracker and, a moment before, by calling the mirror with that name.
    """

    optimizers: dict[str, Callable[[], object]]

    def backward(self, digits: Digits) -> tuple[float, list[Array]]:
        """Return the loss, and its gradients in the order of `initial_weights`."""

    def receive(self, gradients: list[Array]) -> None:
        """Take over the gradients that the next steps are to use."""

    def evaluate(self, digits: Digits) -> tuple[float, float]:
        """Return the loss, and the share of the digits recognised."""


class Model(Protocol):
    """A module that trains, with NumPy or with PyTorch."""

    library: str

    def replicas(
        self, number: int, weights: list[Array], log: CallbackLog, mirror: Callable[[str], object]
    ) -> AbstractContextManager[tuple[StepCounts, list[Replica]]]:
        """Set up replicas that start from the weights, and the tracker that they count in.

        All their requesters are registered, at step 0. The tracker's callback is the log.
        """
