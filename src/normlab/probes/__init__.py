"""See what normalization does inside a model while it trains: probes measure, a watch asks them and writes the run."""

from .probe import PLACES, PRICES, AttentionFrame, BlockFrame, NormFrame, Probe, StepFrame
from .quantities import PROBES
from .watch import Watch, presets, watch

__all__ = [
    "PLACES",
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
