"""Small models and optimizers for the tests, and PyTorch's state to compare."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import profiler
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as torch_optimizer

from kineto_step_tracker import drop_in


def weights(number: int = 1) -> list[torch.nn.Parameter]:
    """Parameters with a gradient, so that a step has something to do."""
    made = [torch.nn.Parameter(torch.ones(2)) for _ in range(number)]
    for weight in made:
        weight.grad = torch.ones(2)
    return made


def sgd() -> SGD:
    return SGD(weights(), lr=0.1)


class Plain(Optimizer):
    """An optimizer of a user's own, which torch.compile takes without a graph break."""

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(weight.grad, alpha=-0.1)


def in_pytorch() -> tuple[Any, Any]:
    """The class under both of PyTorch's names."""
    return tuple(vars(module)["KinetoStepTracker"] for module in (profiler, torch.profiler))


def pytorch_state() -> dict[str, Any]:
    """Everything that install() replaces."""
    stock = profiler.KinetoStepTracker
    return {
        "names": in_pytorch(),
        "metaclass": type(stock),
        "class": {name: value for name, value in vars(stock).items() if name != "_step_dict"},
        "step_dict": (id(stock._step_dict), dict(stock._step_dict)),
        "hooks": list(torch_optimizer._global_optimizer_post_hooks.items()),
        "step_kineto": drop_in.step_kineto,
    }
