"""Experiments: one configuration to one run directory, and many of them to an answer.

experiment    what one trial is, as data          tasks      what it learns
train         one experiment -> one run           checkpoint its state on disk
sweep         grid x seeds -> trials, plan        growth     a sweep that grows
pool, cluster who runs them                       work       what a step costs here
asked         assays between steps                scaling    of features, outside of networks
"""

from __future__ import annotations

from .experiment import Experiment
from .folders import FolderInUse
from .pool import Pool, StorageFailed
from .rates import lr_range
from .scaling import ScalingResult, feature_scaling
from .sweep import Message, Plan, Sweep, Trial, checked, plan, run
from .tasks import TASKS
from .train import Stopped, train

__all__ = [
           "TASKS",
           "Experiment",
           "FolderInUse",
           "Message",
           "Plan",
           "Pool",
           "ScalingResult",
           "Stopped",
           "StorageFailed",
           "Sweep",
           "Trial",
           "checked",
           "feature_scaling",
           "lr_range",
           "plan",
           "run",
           "train",
]  # fmt: skip
