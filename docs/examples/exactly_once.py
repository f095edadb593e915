"""Without PyTorch: workers in a thread pool, and a checkpoint for every hundredth step, just once.

Eight workers count steps together. The tracker calls on_step once for each rise of the step, in
order and never two at a time, so the checkpoints need no lock, no two workers write the same one,
and none is left out. A worker that raises the step while another one is writing does not wait.

    pip install . && python docs/examples/exactly_once.py
"""

from concurrent.futures import ThreadPoolExecutor

from kineto_step_tracker import StepTracker

WORKERS, ITEMS, EVERY = 8, 125, 100

checkpoints: list[int] = []


def checkpoint(step: int) -> None:
    if step % EVERY == 0:
        checkpoints.append(step)


tracker = StepTracker(on_step=checkpoint)


def work(worker: int) -> None:
    for _ in range(ITEMS):
        # ... the work on one item ...
        tracker.increment_step("items")


with ThreadPoolExecutor(WORKERS) as pool:
    list(pool.map(work, range(WORKERS)))

print(f"{WORKERS} workers with {ITEMS} items each: step {tracker.current_step()}")
print("checkpoints at", *checkpoints)
