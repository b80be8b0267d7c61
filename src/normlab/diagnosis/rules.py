"""All rules, in order, and the diagnosis they give together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
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
from .finding import SEVERITIES, Diagnosis, Finding
from .loss import constant_answer, learning_rate_high, learning_rate_low, loss_divergence, loss_spike
from .needs import blind, change
from .record import Record
from .setup import eps_swallows, large_initialization, stale_gradient, stuck_weights
from .values import dead_gain, gain_explosion, leak, nonfinite
from .words import rule_in

# Within a severity findings come in this order: causes before consequences.
RULES: dict[str, Callable[[Record], Iterator[Finding]]] = {
    "nonfinite": nonfinite,
    "leak": leak,
    "stale-gradient": stale_gradient,
    "stuck-weights": stuck_weights,
    "large-initialization": large_initialization,
    "gain-explosion": gain_explosion,
    "padding-contamination": padding_contamination,
    "loss-divergence": loss_divergence,
    "learning-rate-high": learning_rate_high,
    "exploding-gradient": exploding_gradient,
    "vanishing-gradient": vanishing_gradient,
    "learning-rate-low": learning_rate_low,
    "eps-swallows": eps_swallows,
    "missing-final-norm": missing_final_norm,
    "unstable-batch-statistics": unstable_batch_statistics,
    "train-inference-gap": train_inference_gap,
    "attention-logit-growth": attention_logit_growth,
    "stream-growth": stream_growth,
    "token-collapse": token_collapse,
    "constant-answer": constant_answer,
    "dead-upper-blocks": dead_upper_blocks,
    "dead-gain": dead_gain,
    "loss-spike": loss_spike,
}

# What a finding brings with it: of these only their names are told, as a part of its reasons.
FAR_OFF = (
    "stream-growth",
    "attention-logit-growth",
    "token-collapse",
    "dead-upper-blocks",
    "loss-spike",
    "constant-answer",
)
CONSEQUENCES: dict[str, tuple[str, ...]] = {
    "nonfinite": ("loss-spike", "loss-divergence"),
    "stale-gradient": (
        "learning-rate-high",
        "loss-divergence",
        "exploding-gradient",
        "gain-explosion",
        "dead-gain",
        *FAR_OFF,
    ),
    "learning-rate-high": ("gain-explosion", "dead-gain", "eps-swallows", *FAR_OFF),
    "loss-divergence": FAR_OFF,
    "gain-explosion": ("loss-divergence", "exploding-gradient", "vanishing-gradient", *FAR_OFF),
    "large-initialization": (
        "learning-rate-high",
        "exploding-gradient",
        "vanishing-gradient",
        "loss-divergence",
        *FAR_OFF,
    ),
    "exploding-gradient": FAR_OFF,
    "vanishing-gradient": ("token-collapse", "constant-answer", "dead-upper-blocks"),
    "eps-swallows": ("missing-final-norm", "vanishing-gradient", "exploding-gradient", *FAR_OFF),
    "dead-gain": ("eps-swallows", "token-collapse", "constant-answer", "dead-upper-blocks", "vanishing-gradient"),
    "missing-final-norm": ("constant-answer",),
    "constant-answer": ("token-collapse", "dead-upper-blocks"),
    "padding-contamination": ("train-inference-gap", "unstable-batch-statistics"),
    "stuck-weights": ("learning-rate-low",),
}


def _causes(findings: list[Finding], record: Record) -> list[Finding]:
    """Without what another finding explains; a consequence of a consequence goes with its cause."""
    present = [f.rule for f in findings]
    kept: list[Finding] = []
    explained = {c for rule in present for c in CONSEQUENCES.get(rule, ())}
    for finding in findings:
        brings = [c for c in CONSEQUENCES.get(finding.rule, ()) if c in explained and c in present]
        if finding.rule in explained:
            continue
        if brings:
            why = finding.why + record.say(
                "brings", rules=record.say("comma").join(rule_in(record.language, c) for c in dict.fromkeys(brings))
            )
            finding = replace(finding, why=why)
        kept.append(finding)
    return kept


def diagnose(run: Run | str | Path, *, include_notes: bool = False, language: str = "en") -> Diagnosis:
    """What is wrong in a run, from its readings alone. ``include_notes`` adds what is worth knowing and not wrong;
    ``language`` is "en" or "zh".

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
    record = Record(run, language)
    findings = [f for rule in RULES.values() for f in rule(record) if include_notes or f.severity != "note"]
    findings = _causes(findings, record)
    findings.sort(key=lambda f: SEVERITIES.index(f.severity))  # stable: RULES' order within a severity
    unseen = tuple(blind(record))
    return Diagnosis(
        tuple(findings), str(run.folder), record.last_step, record.recorded, record.quantities, language, unseen,
        change(record) if unseen else (),
    )  # fmt: skip
