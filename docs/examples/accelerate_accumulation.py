"""accelerate with gradient accumulation and a checkpoint: a prepared optimizer counts once.

accelerate wraps each optimizer in another one, and both are torch.optim.Optimizer. Only the inner
one steps, and only when the gradients of several batches are together, so 20 batches with
accumulation over 4 are 5 steps. The tracker's step is saved and restored with accelerate's
checkpoints, as anything that has state_dict() and load_state_dict() is.

    pip install '.[accelerate]' && python docs/examples/accelerate_accumulation.py
"""

from tempfile import TemporaryDirectory

import torch
from accelerate import Accelerator

from kineto_step_tracker import KinetoStepTracker
from kineto_step_tracker.integrations.training import TrainingSteps


def train(folder: str, *, resume: bool) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    with TrainingSteps() as steps:
        accelerator.register_for_checkpointing(steps)
        if resume:
            accelerator.load_state(folder)
        calls = 0
        for batch in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                calls += 1
        counts = KinetoStepTracker.step_counts()
        print(f"{calls} calls of {type(optimizer).__name__}.step(): step {steps.step}, {counts}")
        accelerator.save_state(folder)


with TemporaryDirectory() as folder:
    train(folder, resume=False)
    # Not for training of yours: one process plays two here, and the second finds the counts at 0.
    KinetoStepTracker.reset()
    torch.autograd.profiler.KinetoStepTracker._current_step = 0
    train(folder, resume=True)
