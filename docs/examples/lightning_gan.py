"""A GAN in Lightning, with two optimizers: trainer.global_step is twice the batches, ours is not.

Under manual optimisation Lightning counts every step() of every optimizer, so what goes by that
count, max_steps for one, sees twice the batches. The callback counts the iterations, logs them
as a metric, and goes on from a checkpoint where the first training stopped.

    pip install '.[lightning]' && python docs/examples/lightning_gan.py
"""

import logging
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from kineto_step_tracker import KinetoStepTracker
from kineto_step_tracker.integrations.lightning import KinetoStepCallback


class GAN(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(4, 8), nn.Linear(8, 1)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(part.parameters()) for part in (self.critic, self.generator)]

    def training_step(self, real: Tensor, number: int) -> None:
        critic, generator = self.optimizers()
        made = self.generator(torch.randn(len(real), 4))
        critic.zero_grad()
        self.manual_backward(self.critic(made.detach()).mean() - self.critic(real).mean())
        critic.step()
        generator.zero_grad()
        self.manual_backward(-self.critic(made).mean())
        generator.step()


def train(epochs: int, save_to: Path, resume_from: Path | None = None) -> None:
    callback = KinetoStepCallback()
    names = "logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"
    quiet = dict.fromkeys(names, False)
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[callback], accelerator="cpu", **quiet)
    data = torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=4)
    trainer.fit(GAN(), data, ckpt_path=resume_from)
    trainer.save_checkpoint(save_to)
    metric = trainer.callback_metrics["kineto_step"]
    print(f"{epochs * 20} batches: trainer.global_step {trainer.global_step}, ours {metric:.0f}")


logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")
with TemporaryDirectory() as folder:
    train(2, save_to=Path(folder, "first.ckpt"))
    # Not for training of yours: one process plays two here, and the second finds the counts at 0.
    KinetoStepTracker.reset()
    torch.autograd.profiler.KinetoStepTracker._current_step = 0
    train(3, save_to=Path(folder, "second.ckpt"), resume_from=Path(folder, "first.ckpt"))
