"""What a lab trains on: real data that every machine already has (nothing is downloaded), or the user's own.

A task knows its data, its held-out part and the loss of the best predictor that never sees the input, without which a
loss says little. Training batches are functions of (seed, step, size), not of a state that moves, so that a resumed
trial and one in another process see the same bits: every draw comes from a generator seeded with a digest of those
numbers. Splits follow digests of the content or fixed places in it, never Python's ``hash``, which differs between
processes. The held-out part is the same for all seeds. What was read is named with its sha256: another Python ships
other pages.
"""

from __future__ import annotations

from .base import UNASKED, Batch, DataTask, Scores, Task, loss, score
from .own import OwnTask
from .table import TASKS, TaskFacts, find_task

__all__ = [
    "TASKS",
    "UNASKED",
    "Batch",
    "DataTask",
    "OwnTask",
    "Scores",
    "Task",
    "TaskFacts",
    "find_task",
    "loss",
    "score",
]
