"""The quantities, one probe each: what is measured, its formula, where it comes from. PROBES lists them.

Tokens are rows; padding has been taken out of ``x_rows`` and ``y_rows``. Everything stays on the device as scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import functional
from .._torch import foreach_norm, foreach_sub
from ..errors import unknown
from .attention import HIDDEN
from .faults import EpsShare, OutputSpread, RunningDistance, Unmoved, WeightScale
from .frames import (
    PRICES,
    AttentionFrame,
    BlockFrame,
    NormFrame,
    NormFrames,
    NormProbe,
    Probe,
    StepFrame,
    denominator,
    rms,
    some,
)  # fmt: skip
from .statistics_flow import IdentityWeight, StatisticGradients, WithinTwo


class BatchDrift(NormProbe):
    """How far this batch's statistics lie from their running average: what BatchNorm sees here, or would see.

        batch_mean_distance = mean over features of |running mean - batch mean| / batch deviation
        batch_var_distance  = mean over features of |running deviation / batch deviation - 1|

    The running average is the norm's own, before this batch moved it, where it has one; else one kept here over the
    recorded steps (momentum 0.1).
    With a mask also ``..._padded``: the same of all cells, padding included, and ``padding_share``.
    Shen et al. 2020 (arXiv 2003.07845) plot these; the normalization is that of arXiv 2210.05153.
    """

    momentum = 0.1

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def measure_all(self, frames: NormFrames) -> Mapping[str, Tensor]:
        if frames.x.shape[-2] < 2:
            return {}
        # Power keeps a mean square and no mean: not these two quantities.
        own = None
        if frames.frames[0].running is not None and frames.sites[0].kind != "power":
            own = [frame.running for frame in frames.frames]
        found = self._distances(frames, "real", frames.x, own, "")
        mask = frames.frames[0].mask
        if mask is not None:
            found |= self._distances(frames, "padded", frames.padded, None, "_padded")
            found["padding_share"] = (1 - mask.float().mean()).expand(len(frames.sites))
        return found

    def _distances(self, frames: NormFrames, what: str, rows: Tensor, own: Any, suffix: str) -> dict[str, Tensor]:
        var, mean = torch.var_mean(rows, -2, correction=0)
        keys = [(site.name, what) for site in frames.sites]
        known = own if own is not None else [self._running[key] for key in keys if key in self._running]
        before = None
        if len(known) == len(keys):
            before = torch.stack([pair[0] for pair in known]).float(), torch.stack([pair[1] for pair in known]).float()
        if before is None:  # nothing to compare with yet
            for key, pair in zip(keys, zip(mean.unbind(0), var.unbind(0), strict=True), strict=True):
                self._running.setdefault(key, pair)
            return {}
        if own is None:
            moved = [
                torch.lerp(old, new, self.momentum).unbind(0) for old, new in zip(before, (mean, var), strict=True)
            ]
            self._running |= zip(keys, zip(*moved, strict=True), strict=True)
        deviation = torch.sqrt(var + 1e-12)
        return {
            f"batch_mean_distance{suffix}": ((before[0] - mean).abs() / deviation).mean(-1),
            f"batch_var_distance{suffix}": (torch.sqrt(before[1] + 1e-12) / deviation - 1).abs().mean(-1),
        }


class GradientThroughStatistics(Probe):
    """What flows back through the statistics, against what flows back directly.

        xhat = (x - mean) / deviation,  g = gain * dL/dy
        dL/dx = (g - mean(g) - xhat mean(g xhat)) / deviation
        grad_through_mean = rms(mean(g)) / rms(g),  grad_through_var = rms(xhat mean(g xhat)) / rms(g)

    Means are over the cells that share a statistic: the features of a token (layer, rms, scale), the tokens of the
    batch (batch, power). RMS, Scale and Power have no mean to flow through. The terms are g_mu and g_sigma2 of
    Shen et al. 2020 (arXiv 2003.07845); Xu et al. 2019 (arXiv 1911.07013) find them to matter more than the forward.
    """

    on = "norm gradient"
    price = "full"  # it holds every norm's input until the backward pass has come by

    def measure(self, frame: NormFrame) -> Mapping[str, Tensor]:
        kind = frame.site.kind
        if kind not in ("layer", "rms", "scale", "batch", "power") or getattr(
            frame.site.module, "detach_statistics", False
        ):
            return {}  # nothing flows through statistics that are detached
        axis = 0 if kind in ("batch", "power") else -1
        centered = kind in ("layer", "batch")
        direct, mean, var = gradient_terms(
            frame.x_rows, frame.grad_rows, frame.gain(), axis, centered, frame.site.eps, frame.site.eps_form
        )
        size = rms(direct) + 1e-30
        found = {"grad_through_var": rms(var) / size}
        if centered:
            found["grad_through_mean"] = rms(mean.expand_as(direct)) / size
        return found


def gradient_terms(
    x: Tensor, grad: Tensor, gain: Tensor | None, axis: int, centered: bool, eps: float, form: str = "root"
) -> tuple[Tensor, Tensor, Tensor]:
    """(direct, through the mean, through the variance), each times 1/deviation: their sum is dL/dx."""
    mean = x.mean(axis, keepdim=True) if centered else torch.zeros_like(x[:1, :1])
    low, slope = denominator(((x - mean) ** 2).mean(axis, keepdim=True), x.shape[axis], eps, form)
    xhat = (x - mean) / low
    g = (grad if gain is None else grad * gain) / low
    through_mean = -g.mean(axis, keepdim=True) if centered else torch.zeros_like(low)
    return g, through_mean, -(x - mean) * slope * (g * xhat).mean(axis, keepdim=True)


class InferenceGap(Probe):
    """How different the same input comes out with the running statistics, as they stood before this batch.

        inference_gap = rms(y with batch statistics - y with running statistics) / rms(y with batch statistics)

    For norms with running statistics, in training.
    """

    on = "norm"

    def measure(self, frame: NormFrame) -> Mapping[str, Tensor]:
        if frame.running is None or not frame.training:
            return {}
        mean, var = (t.float() for t in frame.running)
        module: Any = frame.site.module
        with torch.no_grad():
            y = functional.batch_norm(
                frame.x_rows, mean, var, frame.gain(), _float(module.bias), False, 0.0, frame.site.eps
            )
        return {"inference_gap": rms(frame.y_rows - y) / (rms(frame.y_rows) + 1e-30)}


def _float(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.detach().float()


class Geometry(NormProbe):
    """Where vectors lie after a norm, and what they were like before it.

        length        mean |y| / sqrt(d);  length_spread: its deviation over its mean
        mean_angle    mean angle, in degrees, between y and the hyperplane of vectors without a mean
        anisotropy    mean cosine between different tokens
        kurtosis_in, kurtosis_out      E(v - mean)^4 / var^2 of all values; 3 for a normal distribution
        outlier_features               share of features whose rms over tokens is above 6 medians, in front of the norm
        outlier_tokens                 share of tokens whose rms over features is above 6 medians, in front of the norm

    Lengths and the hyperplane: Brody, Alon, Yahav 2023 (arXiv 2305.02582).
    """

    def measure_all(self, frames: NormFrames) -> Mapping[str, Tensor]:
        x, y = some(frames.x), some(frames.y)
        n, d = y.shape[-2:]
        if n < 2:
            return {}
        lengths = torch.linalg.vector_norm(y, dim=-1)
        safe = lengths + 1e-30
        ratio = lengths / math.sqrt(d)
        length = ratio.mean(-1)
        together = torch.linalg.vector_norm((y / safe[..., None]).sum(-2), dim=-1)
        across = (y.sum(-1).abs() / math.sqrt(d) / safe).clamp(max=1)
        square = x.square()
        feature, token = square.mean(-2).sqrt(), square.mean(-1).sqrt()
        return {
            "length": length,
            "length_spread": ratio.std(-1) / (length + 1e-30),
            "mean_angle": torch.rad2deg(torch.asin(across).mean(-1)),
            "anisotropy": (together.square() - n) / (n * (n - 1)),
            "kurtosis_in": _kurtosis(x),
            "kurtosis_out": _kurtosis(y),
            "outlier_features": _beyond(feature),
            "outlier_tokens": _beyond(token),
        }


def _kurtosis(t: Tensor) -> Tensor:
    square = (t - t.mean((-2, -1), keepdim=True)).square()
    return square.square().mean((-2, -1)) / (square.mean((-2, -1)).square() + 1e-30)


def _beyond(t: Tensor) -> Tensor:
    """The share above 6 medians."""
    return (t > 6 * t.median(-1, keepdim=True).values).float().mean(-1)


class Stream(Probe):
    """The residual stream, block by block.

        stream_rms     rms of what leaves the block
        branch_share   |out - in| / |out|
        cosine         mean cosine between a token before and after the block
        angle          arccos(cosine) / pi, mean over tokens: 0 for a block that does nothing

    At site "model": ``effective_depth`` = (sum of angles)^2 / sum of angles^2, the number of blocks that turn the
    stream if all that do so did it equally; and ``stream_growth``, the last block's rms over the first one's.
    Angular distance: Gromov et al. 2024 (arXiv 2403.17887).
    """

    on = "block"
    price = "lite"

    def measure(self, frame: BlockFrame) -> Mapping[str, Tensor]:
        if frame.y is None:
            return {}
        y = some(frame.rows(frame.y))
        found = {"stream_rms": rms(y)}
        if frame.x is not None and frame.x.shape == frame.y.shape:
            x = some(frame.rows(frame.x))
            cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1)
            found |= {"branch_share": rms(y - x) / (rms(y) + 1e-30), "cosine": cosine.mean(),
                      "angle": (torch.acos(cosine.clamp(-1, 1)) / math.pi).mean()}  # fmt: skip
        return found


class StreamGradient(Probe):
    """stream_grad = |dL/d(what leaves the block)|, over all its tokens."""

    on = "block gradient"
    price = "lite"

    def measure(self, frame: BlockFrame) -> Mapping[str, Tensor]:
        assert frame.grad is not None
        return {"stream_grad": torch.linalg.vector_norm(frame.grad.detach().float())}


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.stack(list(foreach_norm(tensors))).float().norm()


class ParameterGradient(Probe):
    """param_grad = |gradient of the block's parameters|, just before the optimizer uses it; at "model": all of them."""

    on = "before step"
    price = "lite"

    def measure(self, frame: StepFrame) -> Mapping[str, Mapping[str, Tensor]]:
        sites: dict[str, Tensor] = {}
        for block in frame.blocks:
            grads = [p.grad for p in frame.parameters_of(block) if p.grad is not None]
            if grads:
                sites[block.name] = _norm(grads)
        every = [p.grad for p in frame.model.parameters() if p.grad is not None]
        return {"param_grad": sites, "grad_norm": {"model": _norm(every)} if every else {}}


class Gains(Probe):
    """The norms' gains.

    gain_rms, gain_max   of the factors themselves (1 + weight for offset gains)
    gain_drift           |gain - gain at the start| / |gain at the start|
    gain_grad            |dL/dgain|, just before the optimizer uses it
    """

    on = "before step"
    price = "lite"

    def __init__(self) -> None:
        self._start: dict[str, Tensor] = {}

    def measure(self, frame: StepFrame) -> Mapping[str, Mapping[str, Tensor]]:
        found: dict[str, dict[str, Tensor]] = {"gain_rms": {}, "gain_max": {}, "gain_drift": {}, "gain_grad": {}}
        alike: dict[Any, dict[str, Tensor]] = {}
        grads: dict[str, Tensor] = {}
        for site in frame.norms:
            weight, gain = site.weight, site.factor()
            if weight is None or gain is None:
                continue
            self._start.setdefault(site.name, gain.clone())
            alike.setdefault((gain.shape, gain.device), {})[site.name] = gain
            if weight.grad is not None:
                grads[site.name] = weight.grad.float()
        for gains in alike.values():
            names = list(gains)
            now, start = (torch.stack([g[n].flatten() for n in names]) for g in (gains, self._start))
            length = torch.linalg.vector_norm(now, dim=1)
            drift = torch.linalg.vector_norm(now - start, dim=1) / (torch.linalg.vector_norm(start, dim=1) + 1e-30)
            for name, values in (
                ("gain_rms", length / now.shape[1] ** 0.5), ("gain_max", now.abs().amax(1)), ("gain_drift", drift)
            ):  # fmt: skip
                found[name] |= zip(names, values.unbind(0), strict=True)
        found["gain_grad"] = dict(zip(grads, foreach_norm(list(grads.values())) if grads else (), strict=True))
        return found


class UpdateRatio(Probe):
    """update_ratio = |change of the block's parameters by this step| / |parameters|. About 1e-3 is usual."""

    on = "after step"

    def measure(self, frame: StepFrame) -> Mapping[str, Mapping[str, Tensor]]:
        sites = {}
        for block in frame.blocks:
            pairs = [(p.detach(), frame.before[p]) for p in frame.parameters_of(block) if p in frame.before]
            if pairs:
                moved = foreach_sub([now for now, _ in pairs], [old for _, old in pairs])
                sites[block.name] = _norm(list(moved)) / (_norm([old for _, old in pairs]) + 1e-30)
        return {"update_ratio": sites}


class AttentionLogits(Probe):
    """How sharp attention is: the largest logit, and the mean entropy of a row over the largest it could have.

        logit = q.k * scale + additive bias (T5, ALiBi, Swin), what softmax sees, of visible keys
        max_logit = its maximum;  attention_entropy = mean(H(softmax)) / log(number of visible keys), 1 = even

    Of up to 32 evenly spaced queries. Growing logits precede collapse: Zhai et al. 2023 (arXiv 2303.06296).
    """

    on = "attention"
    queries = 32

    def measure(self, frame: AttentionFrame) -> Mapping[str, Tensor]:
        logits, allowed = self._written(frame) if frame.logits is not None else self._computed(frame)
        logits = logits.masked_fill(~allowed, -math.inf)
        visible = allowed.sum(-1).expand(logits.shape[:-1])
        share = torch.softmax(logits, -1)
        entropy = -(share * torch.log(share + 1e-30)).sum(-1)
        several = visible > 1
        even = entropy / torch.log(visible.clamp(min=2).float())
        return {
            "max_logit": logits.amax(),
            "attention_entropy": torch.where(several, even, 0).sum() / several.sum().clamp(min=1),
        }

    def _written(self, frame: AttentionFrame) -> tuple[Tensor, Tensor]:
        assert frame.logits is not None
        logits = frame.logits[:, :, :: -(-frame.logits.shape[-2] // self.queries)].float()
        return logits, logits > HIDDEN

    def _computed(self, frame: AttentionFrame) -> tuple[Tensor, Tensor]:
        assert frame.q is not None and frame.k is not None
        length, keys = frame.q.shape[-2], frame.k.shape[-2]
        stride = -(-length // self.queries)
        k = frame.k.detach().float()
        q = frame.q.detach()[:, :, ::stride].float()
        if q.shape[1] != k.shape[1]:  # several heads share keys
            k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        logits = q @ k.transpose(-1, -2) * frame.scale

        def of_queries(t: Tensor) -> Tensor:
            return t.detach().expand(*t.shape[:-2], length, keys)[..., ::stride, :]

        if frame.bias is not None:
            logits = logits + of_queries(frame.bias).float()
        allowed = torch.ones(q.shape[-2], keys, dtype=torch.bool, device=q.device)
        if frame.causal:
            rows = torch.arange(0, length, stride, device=q.device)
            allowed = torch.arange(keys, device=q.device)[None, :] <= rows[:, None]
        return logits, allowed if frame.allowed is None else of_queries(frame.allowed) & allowed


PROBES: tuple[type[Probe], ...] = (
    BatchDrift,
    GradientThroughStatistics,
    InferenceGap,
    Geometry,
    Stream,
    StreamGradient,
    ParameterGradient,
    Gains,
    UpdateRatio,
    AttentionLogits,
    EpsShare,
    Unmoved,
    WeightScale,
    OutputSpread,
    RunningDistance,
    StatisticGradients,
    WithinTwo,
    IdentityWeight,
)


def presets(name: str) -> list[Probe]:
    """The probes of a preset: each price includes the cheaper ones."""
    if name not in PRICES:
        raise ValueError(unknown("preset", name, PRICES))
    return [probe() for probe in PROBES if PRICES.index(probe.price) <= PRICES.index(name)]
