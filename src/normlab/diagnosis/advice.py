"""What each finding means and what helps, with its source."""

from __future__ import annotations

# rule: (what to try, what is behind it)
ADVICE: dict[str, tuple[tuple[str, ...], str]] = {
    "nonfinite": (
        ("in 16 bits: bfloat16, or a GradScaler, given to watch(scaler=) as well",), "the run itself",
    ),
    "leak": (
        ('a norm that looks at one token: norm="layer" or "rms"',
         'causal_statistics="position" or "running" for norm="batch"'),
        "normlab.leaks",
    ),
    "loss-divergence": (
        ("a learning rate 3 to 10 times lower, or warm-up, or gradient clipping",
         'placement "pre", "peri" or "deepnorm" in place of "post" or "none"', 'qk_norm="head" if max_logit grew'),
        "arXiv 2309.14322",
    ),
    "learning-rate-high": (
        ("warm-up over the first hundreds of steps", 'a placement that bears larger steps: "pre", "peri", "sub-ln"'),
        "arXiv 2002.04745, 2309.14322",
    ),
    "learning-rate-low": (("a look at the schedule: has it left its warm-up?",), "probes.quantities.UpdateRatio"),
    "loss-spike": (
        ("gradient clipping, or a lower beta2 (0.95) for Adam", 'qk_norm="head" if max_logit jumped first',
         "a look at the batch of that step"),
        "arXiv 2304.13013",
    ),
    "exploding-gradient": (
        ('a placement with norms: "pre" for a start, "deepnorm" for depth',
         "gradient clipping hides it and does not cure it"),
        "arXiv 2002.04745",
    ),
    "vanishing-gradient": (
        ('placement "pre", or "deepnorm" to keep the norm behind the sum',
         'placement "b2t" or "admin": other post-norms for depth',
         "warm-up: post-norm needs it from about 8 layers on, and from 12 it may not be enough"),
        "arXiv 2002.04745, 2203.00555",
    ),
    "token-collapse": (
        ('placement "pre" or "deepnorm", which keep the input in the stream', "a lower learning rate, or warm-up"),
        "arXiv 2103.03404, 2206.03126",
    ),
    "stream-growth": (
        ('placement "peri" or "layernorm-scaling", which slow the growth; "deepnorm", which has none',
         "a lower learning rate; weight decay"),
        "arXiv 2002.04745, 2502.02732",
    ),
    "missing-final-norm": (
        ("final_norm=True, which this placement has by default", 'placement "post" or "deepnorm", which end in a norm'),
        "arXiv 2002.04745",
    ),
    "dead-upper-blocks": (
        ('placement "mix-ln", "deepnorm" or "layernorm-scaling"', "fewer layers: these cost and do not pay"),
        "arXiv 2403.17887, 2502.05795",
    ),
    "padding-contamination": (
        ('norm="batch" of normlab, which takes the mask; placements pass it on',
         'norm="layer" or "rms", which never see another token'),
        "arXiv 2003.07845",
    ),
    "unstable-batch-statistics": (
        ("more tokens per batch, or sync=True over processes", 'norm="power", or renorm=(r, d) of BatchNorm',
         'norm="layer" or "rms"'),
        "arXiv 2003.07845, 2210.05153",
    ),
    "train-inference-gap": (
        ("more tokens per batch; momentum=None for the mean of all batches",
         'norm="power", which trains with its running statistics', "freeze() for the last part of the training"),
        "arXiv 2210.05153",
    ),
    "gain-explosion": (
        ("a look at what writes to this weight", "the learning rate and the weight decay of the gains",
         'norm="scale", which has one gain'),
        "arXiv 2209.13325",
    ),
    "dead-gain": (
        ("no weight decay on gains", 'gain="offset", whose decay goes to 1',
         "fewer layers, if the block is not needed"),
        "arXiv 1911.07013",
    ),
    "attention-logit-growth": (
        ('qk_norm="head"', 'placement "hybrid-norm", which normalizes queries, keys and values',
         "a lower learning rate"),
        "arXiv 2303.06296, 2302.05442",
    ),
}  # fmt: skip
