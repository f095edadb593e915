"""The tracker in training frameworks, a file each. Importing this package imports none of them.

- `kineto_step_tracker.integrations.training`: any loop that has checkpoints, accelerate's too
- `kineto_step_tracker.integrations.lightning`: a callback for Lightning's ``Trainer``
- `kineto_step_tracker.integrations.transformers`: a callback for transformers' ``Trainer``
"""
