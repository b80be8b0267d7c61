"""Models looked into: how many norms there are, where they stand, what DeepNorm touches, what is left of the input."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...models import TransformerConfig, build
from ...norms import LayerNorm
from ...placements import PLACEMENTS, PostNorm, PreNorm, deepnorm_scales
from .axes import drawn


def _model(placement: str, num_layers: int = 3, dim: int = 32, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = TransformerConfig(
        placement=placement, num_layers=num_layers, dim=dim, num_heads=4, num_classes=5, **settings
    )
    return build(config)


def _norms(model: nn.Module) -> list[LayerNorm]:
    return [m for m in model.modules() if isinstance(m, LayerNorm)]


@contextlib.contextmanager
def _outputs_of(modules: Iterable[nn.Module], hear: Callable[[Tensor], None]) -> Iterator[None]:
    """Calls ``hear`` with what each of these returns, in order."""
    hooks = [m.register_forward_hook(lambda _module, _inputs, y: hear(y)) for m in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def counts() -> dict[str, float]:
    """Norms of models of three layers by placement; parameters of their own in a layer, ours and torch's."""
    found = {f"norms_{p}".replace("-", "_"): float(len(_norms(_model(p)))) for p in ("post", "pre", "deepnorm")}
    layer = _model("post").stack.layers[0]
    own = {id(norm.weight) for norm in _norms(layer)}
    torchs = nn.TransformerEncoderLayer(32, 4, 64)
    of_torch = {id(m.weight) for m in torchs.modules() if isinstance(m, nn.LayerNorm)}
    return {**found, "extra_of_deepnorm": found["norms_deepnorm"] - found["norms_post"],
            "extra_of_pre": found["norms_pre"] - found["norms_post"],
            "gains_per_layer": float(len(own)), "gains_per_layer_of_torch": float(len(of_torch))}  # fmt: skip


def where_the_norm_stands() -> dict[str, float]:
    """Post-norm and pre-norm against their formulas, with a random sub-layer."""
    d = 17
    x, sublayer = drawn(5, d, seed=60), nn.Linear(d, d).double()
    post, pre = PostNorm(lambda: LayerNorm(d).double()), PreNorm(lambda: LayerNorm(d).double())

    def layer_norm(t: Tensor) -> Tensor:
        return nn.functional.layer_norm(t, (d,))

    with torch.no_grad():
        return {
            "post_against_formula": float((post(x, sublayer) - layer_norm(x + sublayer(x))).abs().max()),
            "pre_against_formula": float((pre(x, sublayer) - (x + sublayer(layer_norm(x)))).abs().max()),
            "norms_at_the_end_of_pre": float(len(_norms(_model("pre").stack.ends))),
            "norms_at_the_end_of_post": float(len(_norms(_model("post").stack.ends))),
        }


class _Activations(TorchFunctionMode):
    """Counts calls of activations, and those whose argument is the very output of a norm."""

    def __init__(self, normed: Sequence[Tensor]) -> None:
        super().__init__()
        self.normed, self.calls, self.of_norms = normed, 0, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.functional.gelu, nn.functional.relu, nn.functional.silu, torch.relu):
            self.calls += 1
            self.of_norms += any(args[0].data_ptr() == y.data_ptr() for y in self.normed)
        return func(*args, **(kwargs or {}))


def what_norms_feed() -> dict[str, float]:
    """How many activations get a norm's output: in a Transformer, and in conv -> norm -> relu."""

    def share(model: nn.Module, x: Tensor) -> float:
        outputs: list[Tensor] = []  # kept alive, so that no other tensor gets their memory
        norms = [m for m in model.modules() if isinstance(m, (LayerNorm, nn.BatchNorm2d))]
        with _outputs_of(norms, outputs.append), _Activations(outputs) as seen, torch.no_grad():
            model(x)
        if not outputs or not seen.calls:
            raise RuntimeError("neither norms nor activations ran")
        return seen.of_norms / seen.calls

    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    tokens = torch.arange(22).reshape(2, 11) % 7
    return {
        "in_transformer": share(_model("post", fused=False), tokens),
        "in_convolution": share(conv, drawn(2, 1, 8, 8).float()),
    }


def deepnorm() -> dict[str, float]:
    """DeepNorm's two numbers for all depths up to a thousand, and which matrices it starts smaller."""
    depths = range(1, 1001)
    scales = [deepnorm_scales(n) for n in depths]
    layers = 12
    started = {p: _model(p, layers, 64) for p in ("post", "deepnorm")}

    def deviation(placement: str, kinds: Sequence[str]) -> float:
        parts: dict[str, list[Any]] = started[placement].stack.parts()
        values = [(m if isinstance(m, Tensor) else m.weight).detach().flatten() for kind in kinds for m in parts[kind]]
        return float(torch.cat(values).std())

    beta = deepnorm_scales(layers)[1]
    small, same = ("value", "output", "feedforward"), ("query", "key")
    closed = max(
        max(abs(a - (2 * n) ** 0.25), abs(b - (8 * n) ** -0.25)) for n, (a, b) in zip(depths, scales, strict=True)
    )
    pairs = [(n, m) for n in (1, 6, 18, 100) for m in (1, 6, 18, 100)]
    both = max(
        max(abs(a - 0.81 * (n**4 * m) ** (1 / 16)), abs(b - 0.87 * (n**4 * m) ** (-1 / 16)))
        for n, m in pairs
        for a, b in [deepnorm_scales(n, stack="encoder", other_layers=m)]
    )
    return {
        "least_alpha": min(a for a, _ in scales), "largest_beta": max(b for _, b in scales), "against_closed_form": max(closed, both),
        "scaled_matrices": deviation("deepnorm", small) / deviation("post", small) / beta,
        "queries_and_keys": deviation("deepnorm", same) / deviation("post", same),
        "learned_numbers": float(sum(p.numel() for p in PLACEMENTS["deepnorm"].placement(nn.Identity).parameters())),
    }  # fmt: skip


def identity_weight() -> dict[str, float]:
    """What is left of x_0 in x_l (regression) when branches are independent and of variance 1: after post-norms, and after pre-norms' sums."""
    d, sublayers = 20_011, 16
    x0 = drawn(d, seed=61)
    x0 = (x0 - x0.mean()) / x0.std(correction=0)
    place = PostNorm(lambda: LayerNorm(d, elementwise_affine=False))
    x, weights = x0, []
    for i in range(sublayers):
        x = place(x[None], lambda h, i=i: drawn(1, d, seed=100 + i))[0]  # type: ignore[misc]
        weights.append(float(x0 @ x / d))
    halvings = [weights[i] / 2 ** (-(i + 1) / 2) for i in range(sublayers // 2)]
    return {"after_2": weights[1], "after_8": weights[7], "after_16": weights[15], "largest_step": max(b / a for a, b in itertools.pairwise(weights) if a > 0.1),
            "worst_ratio_to_theory": max(abs(math.log2(r)) for r in halvings)}  # fmt: skip


def stream_growth() -> dict[str, float]:
    """The stream's mean square after each of 24 layers at the start: post-norm, pre-norm, no norm; at most and at least what theory says for pre-norm."""
    layers = 24
    tokens = torch.randint(256, (4, 16), generator=torch.Generator().manual_seed(62))
    found: dict[str, float] = {}
    for placement in ("post", "pre", "none"):
        model = _model(placement, layers, 64, activation="relu", fused=False, vocab_size=256)
        seen: list[Tensor] = []
        with _outputs_of(model.stack.layers, seen.append), torch.no_grad():
            model(tokens)
        squares = [float(y.square().mean()) for y in seen]
        found[f"growth_{placement}"] = squares[-1] / squares[0]
    return found


# Architectures by placement in the table of docs/en/inspect.md, which `make zoo` writes; parallel blocks counted with pre.
IN_THE_WILD = {"all": 138, "post": 27, "pre": 79}


def placements_in_the_wild() -> dict[str, float]:
    """Shares among architectures whose placement was found from their data flow."""
    return {f"share_of_{name}": IN_THE_WILD[name] / IN_THE_WILD["all"] for name in ("post", "pre")}
