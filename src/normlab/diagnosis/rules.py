"""All rules, in order, and the diagnosis they give together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ..runs import Run
from .batch import attention_logit_growth, padding_contamination, train_inference_gap, unstable_batch_statistics
from .depth import (
    dead_upper_blocks,
    exploding_gradient,
    missing_final_norm,
    stream_growth,
    token_collapse,
    vanishing_gradient,
)
from .loss import learning_rate_high, learning_rate_low, loss_divergence, loss_spike
from .record import SEVERITIES, Diagnosis, Finding, Record
from .values import dead_gain, gain_explosion, leak, nonfinite

# Within a severity findings come in this order: causes before consequences.
RULES: dict[str, Callable[[Record], Iterator[Finding]]] = {
    "nonfinite": nonfinite,
    "leak": leak,
    "gain-explosion": gain_explosion,
    "padding-contamination": padding_contamination,
    "loss-divergence": loss_divergence,
    "learning-rate-high": learning_rate_high,
    "exploding-gradient": exploding_gradient,
    "vanishing-gradient": vanishing_gradient,
    "learning-rate-low": learning_rate_low,
    "missing-final-norm": missing_final_norm,
    "unstable-batch-statistics": unstable_batch_statistics,
    "train-inference-gap": train_inference_gap,
    "attention-logit-growth": attention_logit_growth,
    "stream-growth": stream_growth,
    "token-collapse": token_collapse,
    "dead-upper-blocks": dead_upper_blocks,
    "dead-gain": dead_gain,
    "loss-spike": loss_spike,
}


def diagnose(run: Run | str | Path, *, include_notes: bool = False) -> Diagnosis:
    """What is wrong in a run, from its readings alone. ``include_notes`` adds what is worth knowing and not wrong.

    >>> import tempfile
    >>> from normlab.runs import Writer
    >>> folder = tempfile.mkdtemp()
    >>> writer = Writer(folder + "/a")
    >>> for step in range(1, 41):
    ...     writer.write(step, {"loss": {"model": 3.0 if step < 20 else 9.0}})
    >>> writer.close()
    >>> [f.rule for f in diagnose(folder + "/a").findings]
    ['loss-divergence']
    """
    run = run if isinstance(run, Run) else Run(run)
    record = Record(run)
    findings = [f for rule in RULES.values() for f in rule(record) if include_notes or f.severity != "note"]
    findings.sort(key=lambda f: SEVERITIES.index(f.severity))  # stable: RULES' order within a severity
    return Diagnosis(tuple(findings), str(run.folder), record.last_step, record.recorded, record.quantities)
