"""Quantities that are zero or dull in a healthy model and give a fault away: an eps that is too large, weights that do not
move, weights that start too large, answers that do not depend on the input, gradients of earlier steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .budget import Budget
from .frames import FEW, NormFrame, NormFrames, NormProbe, Probe, StepFrame, rms, some


class EpsShare(NormProbe):
    """eps_share = mean of eps / (variance + eps): what part of a norm's denominator is its eps. Of RMSNorm the mean square
    stands in place of the variance; of BatchNorm the variance is a feature's, of the others a token's."""

    def measure_all(self, frames: NormFrames) -> Mapping[str, Tensor]:
        kind, rows = frames.sites[0].kind, frames.x
        if kind not in ("layer", "rms", "batch") or rows.shape[-2] < 2:
            return {}
        if kind == "batch":
            var = rows.var(-2, correction=0)
        else:
            rows = some(rows)
            var = rows.square().mean(-1) if kind == "rms" else rows.var(-1, correction=0)
        eps = torch.tensor([[site.eps] for site in frames.sites], device=rows.device)
        return {"eps_share": (eps / (var + eps)).mean(-1)}


class RunningDistance(Probe):
    """running_distance_padded = mean over features of |running mean - mean of all cells| / their deviation, padding included:
    small at a BatchNorm that counts padding. Where there is a mask."""

    on = "norm"

    def measure(self, frame: NormFrame) -> Mapping[str, Tensor]:
        if frame.site.kind != "batch" or frame.running is None or frame.mask is None:
            return {}
        var, mean = torch.var_mean(frame.padded_rows, 0, correction=0)
        return {"running_distance_padded": ((frame.running[0].float() - mean).abs() / (var + 1e-12).sqrt()).mean()}


class Unmoved(Probe):
    """unmoved_share = of the 16-bit matrices of a block, the share of elements with a gradient that the step left as they were.

    A 16-bit weight rounds away every change below half its spacing: 0.2 % (bfloat16) or 0.02 % (float16) of its size.
    """

    on = "after step"

    def measure(self, frame: StepFrame) -> Mapping[str, Mapping[str, Tensor]]:
        sites = {}
        for block in frame.blocks:
            stuck, asked = [], []
            for p in frame.parameters_of(block):
                if p in frame.before and p.grad is not None and p.dim() > 1 and p.element_size() == 2:
                    had = p.grad != 0
                    asked.append(had.sum())
                    stuck.append((had & (p.detach() == frame.before[p])).sum())
            if asked:
                sites[block.name] = torch.stack(stuck).sum() / torch.stack(asked).sum().clamp(min=1)
        return {"unmoved_share": sites}


class WeightScale(Probe):
    """weight_scale = rms of a matrix * sqrt(its smaller side), once, at the run's first recorded step: 1 keeps the size of what
    goes through it. Of a block the largest of its matrices; of a linear layer outside the blocks its own."""

    on = "before step"
    price = "lite"

    def measure(self, frame: StepFrame) -> Mapping[str, Mapping[str, Tensor]]:
        if not frame.first:
            return {}
        sites = {}
        inside: set[nn.Module] = set()
        for block in frame.blocks:
            inside.update(block.module.modules())
            scales = [_scale(p) for p in frame.parameters_of(block) if p.dim() in (2, 3)]
            if scales:
                sites[block.name] = torch.stack(scales).max()
        for name, module in frame.model.named_modules():
            if isinstance(module, nn.Linear) and module not in inside:
                sites[name] = _scale(module.weight)
        return {"weight_scale": sites}


def _scale(weight: Tensor) -> Tensor:
    return rms(weight.detach().float()) * float(min(weight.shape[-2:]) ** 0.5)


@dataclass(frozen=True)
class OutputFrame:
    """What the model gave back."""

    y: Tensor
    mask: Tensor | None = None


class OutputSpread(Probe):
    """output_spread = rms over rows and classes of (y - mean of y over rows), y without its row's mean: how far, in logits,
    answers differ from input to input. Near 0 the model gives everybody the same answer."""

    on = "output"
    price = "lite"

    def measure(self, frame: OutputFrame) -> Mapping[str, Tensor]:
        rows = frame.y.detach().flatten(0, -2)
        if frame.mask is not None and frame.mask.shape == frame.y.shape[:-1]:
            rows = rows[frame.mask.flatten()]
        rows = rows if len(rows) <= FEW else rows[:: -(-len(rows) // FEW)]
        if len(rows) < 2 or rows.shape[1] < 2:
            return {}
        rows = rows.float()
        rows = rows - rows.mean(1, keepdim=True)
        return {"output_spread": rms(rows - rows.mean(0))}


def answers_of(output: Any) -> Tensor | None:
    """The logits in what a model returns: the largest floating tensor of two axes or more."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() and output.dim() >= 2 and not output.is_nested else None
    named = getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return answers_of(named)
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    found = [t for v in values if isinstance(v, Tensor) and (t := answers_of(v)) is not None]
    return max(found, key=lambda t: t.numel(), default=None)


class Accumulated:
    """Are the gradients that the optimizer uses those of this step? What the backward passes of a recorded step bring to one small
    parameter is added up and compared with its ``.grad``. Idle steps have no hook: four operators on a few numbers are a thousandth of a step.

        stale_gradient = |grad - c sum| / |grad|, c the factor that fits best: clipping and a GradScaler change the length alone

    0 where gradients were cleared, also with several micro-batches per step; the sum or the last pass may fit (SAM clears
    between two passes of one step).
    """

    def __init__(self, model: nn.Module | None, budget: Budget) -> None:
        every = () if model is None else model.parameters()
        self._wanted = [p for p in every if p.requires_grad and p.numel() >= 4 and type(p) is nn.Parameter]
        self._budget = budget
        self._sum: Tensor | None = None
        self._last: Tensor | None = None
        self._handle: Any = None
        self._choose(self._wanted)

    def _choose(self, among: list[nn.Parameter]) -> None:
        self.parameter = min(among, key=lambda p: p.numel(), default=None)

    def begin(self, active: bool) -> None:
        """The next step, recorded or not."""
        self.close()
        self.stepped()
        if active and self.parameter is not None:
            self._handle = self.parameter.register_hook(self._see)

    def _see(self, grad: Tensor) -> None:
        with self._budget:
            grad = grad.detach().float()
            self._last = grad.clone()
            self._sum = self._last.clone() if self._sum is None else self._sum.add_(grad)

    def measure(self) -> dict[str, dict[str, Tensor]]:
        """Before the optimizer step."""
        grad = None if self.parameter is None else self.parameter.grad
        if grad is None:  # nothing flows to it (XLNet's mask embedding): from the next step on, another
            self._choose([p for p in self._wanted if p.grad is not None] or self._wanted)
        if grad is None or self._sum is None or self._last is None or grad.is_sparse:
            return {}
        g = grad.detach().float()
        size = torch.linalg.vector_norm(g)
        left = [
            torch.linalg.vector_norm(g - (g * s).sum() / (s * s).sum().clamp(min=1e-30) * s)
            for s in (self._sum, self._last)
        ]
        return {"stale_gradient": {"model": torch.minimum(*left) / size.clamp(min=1e-30)}}

    def stepped(self) -> None:
        self._sum = self._last = None

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
