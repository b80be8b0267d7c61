"""Bad input and bad options: refused in words, and nothing has moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from norm_cases import BUILD, FEATURES, all_builds, assert_untouched, draw, shaken, state_of, turned
from torch import Tensor, nn

import normlab
from normlab import functional

# ---- bad input -------------------------------------------------------------------------------------------------------


def assert_refused(layer: nn.Module, kind: type[Exception], words: Sequence[str], *args: Any, **options: Any) -> None:
    before = state_of(layer)
    with pytest.raises(kind) as caught:
        layer(*args, **options)
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"
    assert_untouched(layer, before)


def image(layer: nn.Module, x: Tensor) -> Tensor:
    return x.transpose(1, 2) if getattr(layer, "channel_dim", -1) == 1 else x


REFUSED: dict[str, tuple[type[Exception], list[str], Callable[[], tuple[Tensor, dict[str, Any]]]]] = {
    "width": (ValueError, ["22", "21"], lambda: (draw(5, 11, 22), {})),
    "integers": (TypeError, ["int64", "floating"], lambda: (torch.ones(5, 11, FEATURES, dtype=torch.int64), {})),
    "booleans": (TypeError, ["bool", "floating"], lambda: (torch.ones(5, 11, FEATURES, dtype=torch.bool), {})),
    "mask-shape": (ValueError, ["(5, 12)", "(5, 11)"],
                   lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 12, dtype=torch.bool)})),
    "mask-flat": (ValueError, ["(55,)", "(5, 11)"],
                  lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(55, dtype=torch.bool)})),
    "mask-full": (ValueError, ["(5, 11, 1)", "(5, 11)"],
                  lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11, 1, dtype=torch.bool)})),
    "sparse": (TypeError, ["dense", "sparse", "to_dense"], lambda: (draw(5, 11, FEATURES).to_sparse(), {})),
    "mask-sparse": (TypeError, ["mask", "dense", "to_dense"],
                    lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11, dtype=torch.bool).to_sparse()})),
    "mask-integers": (TypeError, ["int64", "bool"],
                      lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11, dtype=torch.int64)})),
    "mask-floats": (TypeError, ["float32", "bool"], lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11)})),
    "mask-list": (TypeError, ["list", "bool"], lambda: (draw(5, 11, FEATURES), {"mask": [[True] * 11] * 5})),
    "lengths-long": (ValueError, ["12", "0..11"], lambda: (draw(5, 11, FEATURES), {"lengths": [11, 12, 1, 1, 1]})),
    "lengths-negative": (ValueError, ["-1", "0..11"], lambda: (draw(5, 11, FEATURES), {"lengths": [11, 2, -1, 1, 1]})),
    "lengths-few": (ValueError, ["(4,)", "(5,)"], lambda: (draw(5, 11, FEATURES), {"lengths": [11, 2, 1, 1]})),
    "lengths-floats": (TypeError, ["float32", "integers"],
                       lambda: (draw(5, 11, FEATURES), {"lengths": torch.ones(5)})),
    "mask-and-lengths": (ValueError, ["mask", "lengths", "not both"],
                         lambda: (draw(5, 11, FEATURES), {"lengths": [1] * 5, "mask": torch.ones(5, 11, dtype=torch.bool)})),
    "meta-mask": (ValueError, ["meta", "cpu", "mask"],
                  lambda: (draw(5, 11, FEATURES), {"mask": torch.ones(5, 11, dtype=torch.bool, device="meta")})),
    "meta-input": (ValueError, ["meta", "cpu"], lambda: (torch.empty(5, 11, FEATURES, device="meta"), {})),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("mistake", REFUSED)
@pytest.mark.parametrize("build", all_builds())
def test_bad_input_is_refused_and_changes_nothing(build: Callable[[], nn.Module], mistake: str, training: bool) -> None:
    kind, words, make = REFUSED[mistake]
    layer = shaken(build()).train(training)
    x, options = make()
    assert_refused(layer, kind, words, image(layer, x), **options)
    assert turned(layer)(draw(5, 11, FEATURES)).isfinite().all(), "the layer still works"


@pytest.mark.parametrize("name", ["batch", "instance", "group", "power"])
def test_too_few_and_too_many_axes(name: str) -> None:
    layer = BUILD[name][0][1]()
    assert_refused(layer, ValueError, ["2-D to 5-D", "(21,)"], draw(FEATURES))
    assert_refused(layer, ValueError, ["2-D to 5-D", "(1, 1, 1, 1, 2, 21)"], draw(1, 1, 1, 1, 2, FEATURES))


@pytest.mark.parametrize("name", ["batch", "instance", "group", "power"])
@pytest.mark.parametrize("channel", [0, 3, -4])
def test_channel_dim_out_of_place(name: str, channel: int) -> None:
    layer = BUILD[name][0][1]()
    layer.channel_dim = channel
    assert_refused(layer, ValueError, ["channel_dim", str(channel)], draw(FEATURES, FEATURES, FEATURES))


@pytest.mark.parametrize("name", normlab.NORMS)
def test_not_a_tensor(name: str) -> None:
    layer = BUILD[name][0][1]()
    assert_refused(layer, TypeError, ["tensor", "list"], [[0.0] * FEATURES])


CONSTRUCTORS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "layer eps": (lambda: normlab.LayerNorm(7, eps=-1.0), ["eps", "-1.0", ">= 0"]),
    "rms eps": (lambda: normlab.RMSNorm(7, eps=-1e-6), ["eps", "-1e-06", ">= 0"]),
    "scale eps": (lambda: normlab.ScaleNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "batch eps": (lambda: normlab.BatchNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "instance eps": (lambda: normlab.InstanceNorm(7, eps=float("nan")), ["eps", "nan"]),
    "group eps": (lambda: normlab.GroupNorm(1, 7, eps=float("inf")), ["eps", "inf"]),
    "power eps": (lambda: normlab.PowerNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "residual eps": (lambda: normlab.ResidualNorm(7, eps=-1.0), ["eps", "-1.0"]),
    "groups": (lambda: normlab.GroupNorm(4, 21), ["21", "4", "divide"]),
    "no groups": (lambda: normlab.GroupNorm(0, 21), ["21", "0", "divide"]),
    "group scaling": (lambda: normlab.PowerNorm(21, group_scaling=4), ["21", "4", "divide"]),
    "gain": (lambda: normlab.LayerNorm(7, gain="ofset"), ["'ofset'", "'offset'", "direct", "none"]),
    "batch gain": (lambda: normlab.BatchNorm(7, gain="one"), ["'one'", "offset", "direct", "none"]),
    "residual gain": (lambda: normlab.ResidualNorm(7, gain="dirct"), ["'dirct'", "'direct'"]),
    "dropout of one": (lambda: normlab.ResidualNorm(7, dropout=1.0), ["dropout", "1.0", "[0, 1)"]),
    "dropout below zero": (lambda: normlab.ResidualNorm(7, dropout=-0.1), ["dropout", "-0.1", "[0, 1)"]),
    "residual norm": (lambda: normlab.ResidualNorm(7, norm="layr"), ["'layr'", "'layer'", "rms"]),
    "partial": (lambda: normlab.RMSNorm(7, partial=0.0), ["partial", "0.0", "(0, 1]"]),
    "partial above one": (lambda: normlab.RMSNorm(7, partial=1.5), ["partial", "1.5", "(0, 1]"]),
    "shape": (lambda: normlab.LayerNorm(()), ["normalized_shape", "()"]),
    "zero width": (lambda: normlab.LayerNorm((3, 0)), ["normalized_shape", "(3, 0)"]),
    "momentum": (lambda: normlab.BatchNorm(7, momentum=1.5), ["momentum", "1.5", "[0, 1]"]),
    "alpha": (lambda: normlab.PowerNorm(7, alpha_backward=1.1), ["alpha_backward", "1.1", "[0, 1]"]),
    "ghost size": (lambda: normlab.BatchNorm(7, ghost_size=0), ["ghost_size", "0"]),
    "renorm": (lambda: normlab.BatchNorm(7, renorm=(0.5, 1.0)), ["renorm", "(0.5, 1.0)", "r_max >= 1"]),
    "ghost and renorm": (lambda: normlab.BatchNorm(7, ghost_size=2, renorm=(2.0, 1.0)), ["ghost_size", "renorm", "exclude"]),
    "frozen": (lambda: normlab.BatchNorm(7, frozen=True, track_running_stats=False), ["frozen", "track_running_stats"]),
    "scale dim": (lambda: normlab.ScaleNorm(0), ["dim", "0"]),
    "dyt dim": (lambda: normlab.DyT(0), ["dim", "0"]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CONSTRUCTORS)
def test_bad_options_are_refused(mistake: str) -> None:
    build, words = CONSTRUCTORS[mistake]
    with pytest.raises(ValueError) as caught:
        build()
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "layer eps": (lambda x: functional.layer_norm(x, (21,), eps=-1.0), ["eps", "-1.0"]),
    "rms eps": (lambda x: functional.rms_norm(x, (21,), eps=-1.0), ["eps", "-1.0"]),
    "scale eps": (lambda x: functional.scale_norm(x, eps=-1.0), ["eps", "-1.0"]),
    "batch eps": (lambda x: functional.batch_norm(x, training=True, eps=-1.0), ["eps", "-1.0"]),
    "instance eps": (lambda x: functional.instance_norm(x, eps=-1.0), ["eps", "-1.0"]),
    "group eps": (lambda x: functional.group_norm(x, 3, eps=-1.0), ["eps", "-1.0"]),
    "residual eps": (lambda x: functional.residual_norm(x, x, eps=-1.0), ["eps", "-1.0"]),
    "layer gain": (lambda x: functional.layer_norm(x, (21,), torch.ones(21), gain="ofset"), ["'ofset'", "'offset'"]),
    "batch gain": (lambda x: functional.batch_norm(x, training=True, gain="ofset"), ["'ofset'", "'offset'"]),
    "residual gain": (lambda x: functional.residual_norm(x, x, gain="ofset"), ["'ofset'", "'offset'"]),
    "groups": (lambda x: functional.group_norm(x, 4), ["21", "4", "divide"]),
    "partial none": (lambda x: functional.rms_norm(x, (21,), partial=0), ["partial", "0", "21"]),
    "partial beyond": (lambda x: functional.rms_norm(x, (21,), partial=22), ["partial", "22", "21"]),
    "weight": (lambda x: functional.layer_norm(x, (21,), torch.ones(20)), ["weight", "20", "21"]),
    "channel weight": (lambda x: functional.group_norm(x, 3, torch.ones(20)), ["weight", "20", "21"]),
    "nothing to evaluate with": (lambda x: functional.batch_norm(x), ["running statistics", "training=True"]),
    "shape": (lambda x: functional.layer_norm(x, (11, 22)), ["(5, 11, 21)", "(11, 22)"]),
    "dropout": (lambda x: functional.residual_norm(x, x, dropout=1.5), ["dropout", "1.5"]),
    "norm": (lambda x: functional.residual_norm(x, x, norm="batch"), ["'batch'", "layer", "rms"]),
    "layer weight without gain": (
        lambda x: functional.layer_norm(x, (21,), torch.ones(21), gain="none"), ["gain='none'", "weight"]),
    "batch weight without gain": (
        lambda x: functional.batch_norm(x, weight=torch.ones(21), training=True, gain="none"), ["gain='none'", "weight"]),
    "residual weight without gain": (
        lambda x: functional.residual_norm(x, x, torch.ones(21), gain="none"), ["gain='none'", "weight"]),
    "one running statistic": (
        lambda x: functional.batch_norm(x, torch.zeros(21), None, training=True), ["running_mean", "running_var", "both"]),
    "momentum a tensor": (lambda x: moved(x, momentum=torch.tensor(0.1)), ["momentum", "tensor(0.1"]),
    "momentum none": (lambda x: moved(x, momentum=None), ["momentum", "None"]),
    "momentum text": (lambda x: moved(x, momentum="0.1"), ["momentum", "'0.1'"]),
    "groups no integer": (lambda x: functional.group_norm(x, 3.0), ["num_groups", "3.0"]),  # type: ignore[arg-type]
    "running statistics of two axes": (
        lambda x: functional.batch_norm(x, torch.zeros(3, 7), torch.ones(21), training=True), ["(3, 7)", "running_mean"]),
}  # fmt: skip
TYPES: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "shape no integers": (lambda x: functional.layer_norm(x, (21.0,)), ["integer", "21.0"]),  # type: ignore[arg-type]
    "partial no integer": (lambda x: functional.rms_norm(x, (21,), partial=3.5), ["integer", "3.5"]),  # type: ignore[arg-type]
    "weight a list": (lambda x: functional.group_norm(x, 3, [1.0] * 21), ["weight", "list"]),  # type: ignore[arg-type]
    "weight sparse": (lambda x: functional.batch_norm(x, weight=torch.ones(21).to_sparse(), training=True), ["dense", "sparse"]),
    "alpha to be learned": (
        lambda x: functional.residual_norm(x, x, alpha=torch.ones((), requires_grad=True)), ["alpha", "gradient"]),  # type: ignore[arg-type]
}  # fmt: skip


def moved(x: Tensor, momentum: Any) -> Tensor:
    return functional.batch_norm(x, torch.zeros(21), torch.ones(21), training=True, momentum=momentum)


@pytest.mark.parametrize("mistake", [*FUNCTIONS, *TYPES])
def test_functions_refuse_what_layers_refuse(mistake: str) -> None:
    call, words = {**FUNCTIONS, **TYPES}[mistake]
    with pytest.raises(TypeError if mistake in TYPES else ValueError) as caught:
        call(draw(5, 11, 21))
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


@pytest.mark.parametrize("norm", ["layer", "rms"])
class TestResidualRefuses:
    def test_shapes(self, norm: str) -> None:
        layer = normlab.ResidualNorm(21, norm=norm)
        assert_refused(layer, ValueError, ["(5, 11, 21)", "(5, 12, 21)"], draw(5, 11, 21), draw(5, 12, 21))
        assert_refused(layer, ValueError, ["(5, 11, 21)", "(11, 21)"], draw(5, 11, 21), draw(11, 21))
        assert_refused(layer, ValueError, ["(5, 22)", "21"], draw(5, 22), draw(5, 22))

    def test_dtypes(self, norm: str) -> None:
        layer = normlab.ResidualNorm(21, norm=norm)
        whole = torch.ones(5, 21, dtype=torch.int64)
        assert_refused(layer, TypeError, ["int64", "floating"], whole, whole)
        assert_refused(layer, ValueError, ["float32", "bfloat16"], draw(5, 21), draw(5, 21).bfloat16())

    def test_devices_and_masks(self, norm: str) -> None:
        layer = normlab.ResidualNorm(21, norm=norm)
        x = draw(5, 11, 21)
        assert_refused(layer, ValueError, ["meta", "cpu", "branch"], x, x.to("meta"))
        assert_refused(layer, ValueError, ["(11,)", "(5, 11)"], x, x, mask=torch.ones(11, dtype=torch.bool))
        assert_refused(layer, TypeError, ["tensor", "list"], x, [0.0])
