"""torch.compile around the whole training step, optimizers included: every step is counted.

The count is an operator in the graph, so it breaks no graph that was whole, and the compiler does
not remove it.

    pip install '.[torch]' && python docs/examples/compiled.py

An argument is the compiler's backend, such as eager; without one it is inductor, which needs a C++
compiler and takes some seconds.
"""

import sys

import torch
from torch import nn

from kineto_step_tracker import KinetoStepTracker, pytorch

ITERATIONS = 20

# Before the first call of what is compiled: graphs recompile after it.
pytorch.install()
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
optimizers = [torch.optim.Adam(part.parameters()) for part in (generator, critic)]


@torch.compile(backend=sys.argv[1] if len(sys.argv) > 1 else "inductor")
def step() -> None:
    for optimizer in optimizers:
        optimizer.step()


for _ in range(ITERATIONS):
    critic(generator(torch.randn(4, 4))).square().mean().backward()
    step()
    for optimizer in optimizers:
        optimizer.zero_grad()

print(f"{ITERATIONS} iterations: step {KinetoStepTracker.current_step()}")
print(KinetoStepTracker.step_counts())
