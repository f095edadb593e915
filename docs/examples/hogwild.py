"""Hogwild: threads train one model without a lock, each with its own optimizer.

Four threads share the weights, not the gradients. The step of the training is that of the thread
that has come furthest, here 250 and not the 1000 that all of them take together. No increment is
lost, and Kineto would be stepped exactly 250 times.

    pip install '.[torch]' && python docs/examples/hogwild.py
"""

from threading import Barrier, Thread

import torch
from torch import nn

from kineto_step_tracker import KinetoStepTracker, pytorch

THREADS, STEPS = 4, 250

pytorch.install()
torch.set_num_threads(1)
models = [nn.Linear(8, 1) for _ in range(THREADS)]
for model in models[1:]:
    for weight, shared in zip(model.parameters(), models[0].parameters(), strict=True):
        weight.data = shared.data
optimizers = [torch.optim.SGD(model.parameters(), lr=0.001) for model in models]
at_start = Barrier(THREADS)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number in range(STEPS):
        inputs = torch.randn(4, 8)
        (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 0:
            # Optimizers that take their first steps together are at the same step from then on.
            # One that comes later starts at the step that the others have come to.
            at_start.wait()


threads = [Thread(target=train, args=pair) for pair in zip(models, optimizers, strict=True)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{THREADS * STEPS} calls of step() in {THREADS} threads")
print(f"step {KinetoStepTracker.current_step()}, counts {KinetoStepTracker.step_counts()}")
