"""Which advice each finding gets: what helps in general, less what the run already does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import Record

# rule: what is behind its threshold or its advice
SOURCES: dict[str, str] = {
    "nonfinite": "the run itself",
    "leak": "normlab.leaks",
    "stale-gradient": "the run itself",
    "stuck-weights": "arXiv 2010.06192",
    "eps-swallows": "the run itself",
    "large-initialization": "arXiv 2002.04745",
    "constant-answer": "the run itself",
    "loss-divergence": "arXiv 2309.14322",
    "learning-rate-high": "arXiv 2002.04745, 2309.14322",
    "learning-rate-low": "normlab.watch.quantities.UpdateRatio",
    "loss-spike": "arXiv 2304.13013",
    "exploding-gradient": "arXiv 2002.04745",
    "vanishing-gradient": "arXiv 2002.04745, 2203.00555",
    "token-collapse": "arXiv 2103.03404, 2206.03126",
    "stream-growth": "arXiv 2002.04745, 2502.02732",
    "missing-final-norm": "arXiv 2002.04745",
    "dead-upper-blocks": "arXiv 2403.17887, 2502.05795",
    "padding-contamination": "arXiv 2003.07845",
    "unstable-batch-statistics": "arXiv 2003.07845, 2210.05153",
    "train-inference-gap": "arXiv 2210.05153",
    "gain-explosion": "arXiv 2209.13325",
    "dead-gain": "arXiv 1911.07013",
    "attention-logit-growth": "arXiv 2303.06296, 2302.05442",
}

# rule, or rule/case: keys of the texts, in order
ADVICE: dict[str, tuple[str, ...]] = {
    "nonfinite/sudden": ("look", "sixteen"),
    "nonfinite/grown": ("look-grown", "slower", "clip", "sixteen"),
    "leak": ("leak-norm", "leak-attention"),
    "stale-gradient": ("clear",),
    "stuck-weights": ("master", "stuck-rate"),
    "eps-swallows": ("eps", "eps-scale"),
    "large-initialization/block": ("draw-block",),
    "large-initialization/layer": ("draw-layer", "tie"),
    "constant-answer": ("pairs", "one-batch", "longer"),
    "loss-divergence": ("lower", "warm", "clip", "placement-divergence", "qk"),
    "learning-rate-high": ("rate-high", "warm"),
    "learning-rate-low": ("rate-low", "schedule"),
    "loss-spike": ("clip", "beta2", "qk", "look-batch"),
    "exploding-gradient": ("placement-exploding", "norm-first", "clip-hides"),
    "vanishing-gradient": ("placement-vanishing", "norm-first", "warm-deep"),
    "token-collapse": ("placement-collapse", "norm-first", "lower-plain"),
    "stream-growth": ("placement-growth", "lower-plain"),
    "missing-final-norm": ("final-norm",),
    "dead-upper-blocks": ("placement-dead", "fewer"),
    "padding-contamination": ("mask", "layer-norm"),
    "unstable-batch-statistics": ("larger-batch", "layer-norm"),
    "unstable-batch-statistics/would": ("keep",),
    "train-inference-gap": ("momentum", "power", "layer-norm"),
    "gain-explosion/jumped": ("writes",),
    "gain-explosion/grew": ("gain-group",),
    "dead-gain/died": ("no-decay", "offset", "shrinks"),
    "dead-gain/unborn": ("one",),
    "attention-logit-growth": ("qk-always", "lower-plain"),
}

# placements that help against a finding; the one the run has is left out, and if the run has a better one already all are
PLACEMENTS: dict[str, tuple[str, ...]] = {
    "placement-divergence": ("pre", "peri", "deepnorm"),
    "placement-exploding": ("pre", "deepnorm"),
    "placement-vanishing": ("pre", "deepnorm", "b2t", "admin"),
    "placement-collapse": ("pre", "deepnorm"),
    "placement-growth": ("peri", "layernorm-scaling", "deepnorm"),
    "placement-dead": ("mix-ln", "deepnorm", "layernorm-scaling"),
}
BEHIND_THE_SUM = ("post", "none", "b2t", "admin", "residual-dual", "deepnorm")


def _logits_grew(record: Record) -> bool:
    return any(max(s.values) > max(25.0, 5 * abs(s.values[0])) for s in record.sites("max_logit").values())


def _sixteen(record: Record) -> bool:
    return not record.weights or any(kind in ("float16", "bfloat16") for kind in record.weights)


# key: does it apply to this run? Others always do.
APPLIES: dict[str, Callable[[Record, Mapping[str, Any]], bool]] = {
    "sixteen": lambda record, given: _sixteen(record),
    "slower": lambda record, given: record.rate is not None,
    "leak-norm": lambda record, given: given.get("kind") in ("batch", "power", "group", "instance"),
    "leak-attention": lambda record, given: given.get("kind") not in ("batch", "power", "group", "instance"),
    "lower": lambda record, given: record.rate is not None,
    "rate-high": lambda record, given: record.rate is not None,
    "rate-low": lambda record, given: record.rate is not None,
    "qk": lambda record, given: bool(given.get("logit")) or _logits_grew(record),
    "beta2": lambda record, given: not record.optimizer or "adam" in str(record.optimizer.get("class")).lower(),
    "norm-first": lambda record, given: record.placement is None or record.placement in ("post", "none"),
    "no-decay": lambda record, given: bool(given.get("decayed", True)),
    "offset": lambda record, given: bool(given.get("decayed", True)),
    "shrinks": lambda record, given: not given.get("decayed", True),
    "warm-deep": lambda record, given: record.placement is None or record.placement in BEHIND_THE_SUM,
    "lower-plain": lambda record, given: record.rate is not None,
}


def advised(record: Record, rule: str, case: str, given: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, object]]]:
    """(key of a text, facts for it beyond the given)."""
    for name in ADVICE.get(f"{rule}/{case}") or ADVICE[rule]:
        if name in APPLIES and not APPLIES[name](record, given):
            continue
        more: dict[str, object] = {}
        if name in PLACEMENTS:
            if record.placement in PLACEMENTS[name] and record.placement != "pre":
                continue  # it has what would be advised
            more["options"] = ", ".join(f'"{p}"' for p in PLACEMENTS[name] if p != record.placement)
        if "lower" not in given and record.rate is not None:
            more["lower"] = f"{float(f'{record.rate / 5:.1g}'):.3g}"
        elif "lower" not in given:
            more["lower"] = math.nan
        yield f"try/{name}", more
