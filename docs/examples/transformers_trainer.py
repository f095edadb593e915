"""transformers.Trainer with the callback: the step in its log, and in its checkpoints.

A language model with one small layer, made from a configuration, so nothing is downloaded. The
second training resumes from the checkpoint of the first. Trainer has one optimizer, so its own
count is right; what the tracker adds is the same count for Kineto, also when something else in
the process steps an optimizer too.

    pip install '.[transformers]' && python docs/examples/transformers_trainer.py
"""

from tempfile import TemporaryDirectory

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from kineto_step_tracker import KinetoStepTracker
from kineto_step_tracker.integrations.transformers import KinetoStepCallback

CONFIG = GPT2Config(
    n_layer=1, n_head=2, n_embd=16, n_positions=8, vocab_size=32, bos_token_id=0, eos_token_id=0
)
SENTENCES = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 80


def train(folder: str, steps: int, *, resume: bool) -> None:
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_steps=5,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    # As a context manager, for a training that raises: Trainer would not tell the callback.
    with KinetoStepCallback() as callback:
        trainer = Trainer(
            GPT2LMHeadModel(CONFIG), arguments, train_dataset=SENTENCES, callbacks=[callback]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(resume_from_checkpoint=resume)
    # The very last one is the summary of the training.
    last = trainer.state.log_history[-2]
    print(f"Trainer's step {last['step']}, ours {last['kineto_step']}")


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
with TemporaryDirectory() as folder:
    train(folder, 5, resume=False)
    # Not for training of yours: one process plays two here, and the second finds the counts at 0.
    KinetoStepTracker.reset()
    torch.autograd.profiler.KinetoStepTracker._current_step = 0
    train(folder, 8, resume=True)
