"""How many readings each rule needs of what it reads, and which rules had too few to look: a rule that stays silent for that has not
said that nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .finding import FEW, Blind
from .loss import LONG
from .record import OVER_TOKENS, Record
from .windows import MIN_LOSSES


@dataclass(frozen=True)
class Need:
    """So many readings at one site, of one of these quantities; ``kinds``: at norms of these kinds."""

    quantities: tuple[str, ...]
    readings: int = FEW
    kinds: tuple[str, ...] = ()

    def had(self, record: Record) -> tuple[int, str]:
        """(readings of the site that has most, of which quantity). What was never read is not asked for: the model has no such thing,
        or the preset no such probe."""
        return max(
            (
                (len(series), quantity)
                for quantity in self.quantities
                for site, series in record.sites(quantity).items()
                if not self.kinds or record.norms.get(site) in self.kinds
            ),
            default=(0, ""),
        )


LOSS = Need(("loss",), MIN_LOSSES)
UPDATES = Need(("update_ratio",))
GRADIENTS = Need(("stream_grad", "param_grad"))

# The other rules draw no window: they need one event, one start, or two readings.
NEEDS: dict[str, tuple[Need, ...]] = {
    "stale-gradient": (Need(("stale_gradient",)),),
    "stuck-weights": (Need(("unmoved_share",)),),
    "padding-contamination": (Need(("batch_mean_distance_padded",), kinds=("batch",)),),
    "loss-divergence": (LOSS,),
    "learning-rate-high": (UPDATES, LOSS),
    "exploding-gradient": (GRADIENTS,),
    "vanishing-gradient": (GRADIENTS,),
    "learning-rate-low": (UPDATES, Need(("loss",), LONG)),
    "eps-swallows": (Need(("eps_share",)),),
    "missing-final-norm": (Need(("stream_rms",)),),
    "unstable-batch-statistics": (Need(("batch_mean_distance",), kinds=OVER_TOKENS),),
    "train-inference-gap": (Need(("inference_gap",)),),
    "attention-logit-growth": (Need(("max_logit",)),),
    "stream-growth": (Need(("stream_rms",)),),
    "token-collapse": (Need(("anisotropy",)), LOSS),
    "constant-answer": (Need(("output_spread",)), UPDATES, LOSS),
    "dead-upper-blocks": (Need(("angle",)),),
    "dead-gain": (Need(("gain_rms",)),),
    "loss-spike": (LOSS,),
}


def blind(record: Record) -> Iterator[Blind]:
    """Rules that had readings, and too few of them; of several quantities the one that is furthest from enough."""
    for rule, needs in NEEDS.items():
        found = [(need, *need.had(record)) for need in needs]
        if all(had for _, had, _ in found):
            need, had, quantity = min(found, key=lambda row: row[1] / row[0].readings)
            if had < need.readings:
                yield Blind(rule, quantity, had, need.readings)


def change(record: Record) -> tuple[str, ...]:
    """What would bring more readings, as far as the run knows what held them back; none for a run that broke off."""
    if record.broken <= record.last_step:
        return ()
    account = record.info.get("recording")
    account = account if isinstance(account, Mapping) else {}
    lean, held, due = (v if isinstance(v := account.get(k), int) else 0 for k in ("lean", "held_back", "due"))
    found = []
    if lean or held:
        limit = record.info.get("max_overhead")
        found.append(record.say("change-overhead", limit=limit, lean=lean, held=held))
    if account and due <= FEW < record.last_step:
        found.append(
            record.say("change-every", less=max(1, record.last_step // (FEW + 2)), every=record.info.get("every"))
        )
    return (*found, record.say("change-steps"))
