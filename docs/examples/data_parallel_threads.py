"""Data-parallel replicas in a ThreadPoolExecutor: an iteration is one step, not one a replica.

Each batch is split among four replicas. Workers compute the gradients, the gradients are
averaged, and workers update the replicas, each with an optimizer of its own, all at once.

    pip install '.[torch]' && python docs/examples/data_parallel_threads.py
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from kineto_step_tracker import KinetoStepTracker, pytorch

REPLICAS, ITERATIONS = 4, 100

pytorch.install()
torch.set_num_threads(1)
models = [nn.Linear(8, 1) for _ in range(REPLICAS)]
for model in models:
    model.load_state_dict(models[0].state_dict())
optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]


def backward(model: nn.Module, inputs: torch.Tensor) -> None:
    (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


with ThreadPoolExecutor(REPLICAS) as pool:
    for _ in range(ITERATIONS):
        list(pool.map(backward, models, torch.randn(16, 8).chunk(REPLICAS)))
        for weights in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([weight.grad for weight in weights]).mean(dim=0)
            for weight in weights:
                weight.grad.copy_(mean)
        list(pool.map(update, optimizers))

same = all(torch.equal(model.weight, models[0].weight) for model in models)
print(f"{REPLICAS * ITERATIONS} calls of step() on {REPLICAS} replicas, which are equal: {same}")
print(f"step {KinetoStepTracker.current_step()}")
