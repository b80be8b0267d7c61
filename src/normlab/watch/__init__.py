"""See what normalization does inside a model while it trains: probes measure, a watch asks them and writes the run."""

from .frames import OCCASIONS, PRICES, AttentionFrame, BlockFrame, NormFrame, Probe, StepFrame
from .quantities import PROBES, presets
from .watch import Watch, watch

__all__ = [
    "OCCASIONS",
    "PRICES",
    "PROBES",
    "AttentionFrame",
    "BlockFrame",
    "NormFrame",
    "Probe",
    "StepFrame",
    "Watch",
    "presets",
    "watch",
]
