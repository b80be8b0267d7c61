"""Rules about statistics over a batch, and about attention."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from .finding import Finding
from .record import OVER_TOKENS, Record, worst_of
from .windows import above, below, late, mid, ratio, span_of

# ---- rules: statistics over tokens -----------------------------------------------------------------------------------

PADDING = 0.05  # share of cells
EXCESS = 3.0
CONTAMINATED = 0.15  # in deviations for a mean, of a deviation for a deviation
AS_PADDED = 0.5
STATISTICS = ("mean", "var")


def padding_contamination(record: Record) -> Iterator[Finding]:
    """BatchNorm that counts padding: the model was given a mask and ignores it, or its inputs end in padding.

    batch_mean_distance compares the norm's own running mean with the real cells; its ..._padded twin compares all cells
    with an average of all cells. A norm that honours the mask has running statistics of real cells, and both are small.
    One that ignores it has running statistics of all cells, and lies off the real ones for good. So: kind "batch",
    padding_share above PADDING, batch_mean_distance above CONTAMINATED and EXCESS times its twin, in the last third.
    Measured without the mask, worst site: 0.6 to 0.9 and 13 to 21 times at 60 % padding, 0.24 and 4.6 times at 29 %;
    with it 0.02 to 0.066 and 0.7 to 1.6 times, 0.35 and 1.9 times with 5 real cells.
    The same of batch_var_distance: padding that comes in as the mean of the real cells (zeros of an embedding) moves the deviations
    alone. Measured so: 0.24 and 4.3 times at 37 % padding; with the mask 0.04 to 0.075.
    Where it is known, the running mean must lie near that of all cells (AS_PADDED of the distance to the real ones): one
    that stands still lies off both. A running deviation that stands still shows in inference_gap: 0.64 to 2.3, and 0.07 (0.3 of the
    distance) where the norm trains with the statistics that it keeps.
    PowerNorm has no running mean, so nothing can be told of it.
    """
    shares, own, gaps = (record.late(q) for q in ("padding_share", "running_distance_padded", "inference_gap"))
    for statistic in STATISTICS:
        quantity = f"batch_{statistic}_distance"
        real, padded = record.sites(quantity), record.sites(f"{quantity}_padded")
        worst = worst_of(
            (mid(w), site, w)
            for site, w in record.late(quantity).items()
            if record.norms.get(site) == "batch" and site in padded and above(shares.get(site), PADDING)
            if above(w, CONTAMINATED) and above(late(ratio(real[site], padded[site])), EXCESS)
            if site not in own or mid(own[site]) < AS_PADDED * mid(w)
            if statistic == "mean" or site not in gaps or mid(gaps[site]) < AS_PADDED * mid(w)
        )
        if worst is not None:
            size, site, window, more = worst
            why = record.say("padding-contamination.why", share=f"{mid(shares[site]):.0%}")
            why += record.say(
                f"padding-contamination.{statistic}", size=size, usual=median(padded[site].values[-len(window) :])
            )
            yield record.found("padding-contamination", "critical", site, span_of(window), why + record.others(more))
            return


UNSTEADY_MEAN, UNSTEADY_VAR = 0.3, 0.25


def unstable_batch_statistics(record: Record) -> Iterator[Finding]:
    """Batch statistics far from their running average, at norms of kind "batch" or "power"; a note at other kinds, of
    what BatchNorm would see there.

    batch_mean_distance above UNSTEADY_MEAN or batch_var_distance above UNSTEADY_VAR, sustained in the last third; not
    where padding explains it. Measured, worst site: "batch" 0.04 to 0.07 and 0.04 to 0.075 with 150 and more cells per
    batch, 0.12 and 0.17 with 32, 0.35 and 0.41 to 0.47 with 5; "power" 0.15 to 0.22 and 0.1 with 200.
    """
    padding = any(padding_contamination(record))
    limits = {"batch_mean_distance": UNSTEADY_MEAN, "batch_var_distance": UNSTEADY_VAR}
    found = [
        (record.norms.get(site) in OVER_TOKENS, mid(w) / limit, site, w, quantity)
        for quantity, limit in limits.items()
        for site, w in record.late(quantity).items()
        if above(w, limit) and not (padding and record.norms.get(site) == "batch")
    ]
    for concerned, case in ((True, ""), (False, "would")):
        rows = [row[1:] for row in found if row[0] is concerned]
        if rows:
            _, site, window, quantity = max(rows, key=lambda row: row[0])
            why = record.say("unstable-batch-statistics.why", quantity=quantity, size=mid(window), site=site,
                             count=len({row[1] for row in rows}), mean=UNSTEADY_MEAN, var=UNSTEADY_VAR)  # fmt: skip
            severity = "warning" if concerned else "note"
            yield record.found("unstable-batch-statistics", severity, site, span_of(window), why, case=case)


GAP = 0.25


def train_inference_gap(record: Record) -> Iterator[Finding]:
    """inference_gap above GAP in the last third: evaluation will compute something else than training did.

    The last third, because running statistics start at 0 and 1 and need some 30 steps. Measured, worst site: "batch"
    0.065 to 0.1 with 150 and more cells per batch, 0.23 with 32, 0.46 with 5; "power" 0.2 with 200.
    """
    worst = worst_of((mid(w), site, w) for site, w in record.late("inference_gap").items() if above(w, GAP))
    if worst is None:
        return
    size, site, window, more = worst
    why = record.say("train-inference-gap.why", size=f"{size:.0%}") + record.others(more)
    yield record.found("train-inference-gap", "warning", site, span_of(window), why, size=f"{size:.0%}")


# ---- rules: attention ------------------------------------------------------------------------------------------------

LOGIT, LOGIT_GROWTH, LOGIT_FLOOR, ENTROPY = 50.0, 10.0, 25.0, 0.05


def attention_logit_growth(record: Record) -> Iterator[Finding]:
    """Attention that turns into a choice of one token.

    max_logit above LOGIT, or above LOGIT_FLOOR and LOGIT_GROWTH times its first reading, or attention_entropy below
    ENTROPY; sustained in the last third. Measured, worst site: 1.6 to 23 and 0.56 to 0.99 in healthy runs; 230 to 1600
    and 0.04 to 0.12 at a learning rate of 1e-1, 63 and 0.2 at 3e-2; 3000 and 0.006 for "none"; 140 and 0.11 for
    "reordered" without QK-norm, which learns all the same and is reported: its paper uses QK-norm.
    """
    series, logits, entropy = record.sites("max_logit"), record.late("max_logit"), record.late("attention_entropy")
    limits = {site: min(LOGIT, max(LOGIT_FLOOR, LOGIT_GROWTH * abs(series[site].values[0]))) for site in logits}
    worst = worst_of((mid(w), site, w) for site, w in logits.items() if above(w, limits[site]))
    worst = worst or worst_of((-mid(w), site, w) for site, w in entropy.items() if below(w, ENTROPY))
    if worst is None:
        return
    _, site, window, more = worst
    told = []
    if site in logits:
        told.append(record.say("attention-logit-growth.why", size=mid(logits[site]), start=series[site].values[0]))
    if site in entropy:
        told.append(record.say("attention-logit-growth.entropy", size=mid(entropy[site])))
    yield record.found("attention-logit-growth", "warning", site, span_of(window), "".join(told) + record.others(more))
