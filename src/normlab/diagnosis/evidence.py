"""What each rule reads, as a picture would show it: the quantities in whose curves its window can be seen, the first recorded one first."""

from __future__ import annotations

EVIDENCE: dict[str, tuple[str, ...]] = {
    "nonfinite": ("loss",),
    "leak": ("loss",),
    "stale-gradient": ("stale_gradient",),
    "stuck-weights": ("unmoved_share", "update_ratio"),
    "large-initialization": ("weight_scale", "loss"),
    "gain-explosion": ("gain_max", "gain_rms"),
    "padding-contamination": (
        "batch_mean_distance_padded",
        "running_distance_padded",
        "batch_mean_distance",
        "batch_var_distance",
    ),
    "loss-divergence": ("loss",),
    "learning-rate-high": ("loss",),
    "exploding-gradient": ("stream_grad",),
    "vanishing-gradient": ("stream_grad",),
    "learning-rate-low": ("loss",),
    "eps-swallows": ("eps_share",),
    "missing-final-norm": ("stream_rms",),
    "unstable-batch-statistics": ("batch_mean_distance", "batch_var_distance"),
    "train-inference-gap": ("inference_gap",),
    "attention-logit-growth": ("max_logit", "attention_entropy"),
    "stream-growth": ("stream_rms",),
    "token-collapse": ("anisotropy",),
    "constant-answer": ("output_spread",),
    "dead-upper-blocks": ("branch_share", "angle"),
    "dead-gain": ("gain_rms",),
    "loss-spike": ("loss",),
}
