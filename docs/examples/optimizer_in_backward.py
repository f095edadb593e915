"""Optimizers in backward, one a parameter: 50 calls of step() an iteration, which is one step.

A hook steps each parameter as soon as its gradient is there, so that the gradients need never be
in memory all at once. PyTorch's own hook counts 50 steps an iteration, and a trace of 10
iterations that is asked for by step is over within the first.

    pip install '.[torch]' && python docs/examples/optimizer_in_backward.py
"""

import torch
from torch import nn

from kineto_step_tracker import KinetoStepTracker, pytorch

ITERATIONS = 20

pytorch.install()
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(25)))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}
calls = 0


def update(parameter: torch.Tensor) -> None:
    global calls
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
    calls += 1


for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(update)
for _ in range(ITERATIONS):
    model(torch.randn(4, 8)).square().mean().backward()

requesters = len(KinetoStepTracker.step_counts())
print(f"{calls} calls of step() by {requesters} optimizers in {ITERATIONS} iterations")
print(f"step {KinetoStepTracker.current_step()}")
