"""Which trainings: for each set, (kind, subject, seed) of the sick ones and the healthy ones. The sets share no model and no seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from . import subjects as s
from .plants import KINDS, slow_statistics, without_final_norm, without_norms
from .trial import Trial


@dataclass(frozen=True)
class Case:
    kind: str  # of KINDS, or "healthy"
    name: str
    make: Callable[[], Trial]


def _sick(kind: str, name: str, make: Callable[[], Trial]) -> Case:
    def planted() -> Trial:
        trial = make()
        plant = KINDS[kind].plant
        if plant is not None:
            plant(trial)
        return trial

    return Case(kind, name, planted)


def _with(trial: Trial, *changes: Callable[[Trial], None], **values: Any) -> Trial:
    for change in changes:
        change(trial)
    for name, value in values.items():
        setattr(trial, name, value)
    return trial


# Kinds whose fault can be put into any decoder.
ANYWHERE = ("rate too high", "rate too low", "gain blown up", "gains decayed", "attention logits grow", "not finite at once",
            "not finite after growth", "bad batch", "16-bit weights", "shuffled targets", "random targets", "gradients not cleared",
            "eps too large", "blocks start too large", "head starts too large", "first block too loud")  # fmt: skip


def warm(steps: int) -> Callable[[int], float]:
    return lambda step: min(1.0, step / steps)


def cosine(steps: int) -> Callable[[int], float]:
    return lambda step: 0.5 * (1 + float(torch.cos(torch.tensor(3.14159 * step / steps))))


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum=0.9)


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr, betas=(0.9, 0.95))


def nadam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.NAdam(parameters, lr)


def rmsprop(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr)


def adafactor(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(parameters, lr)


def decaying(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr, weight_decay=0.1)


def tuning() -> list[Case]:
    own = [
        lambda seed: s.native(seed), lambda seed: s.native(seed, norm="rms", dim=16, positions="rotary", activation="swiglu"),
        lambda seed: s.native(seed, placement="peri", num_layers=3),
    ]  # fmt: skip
    foreign = [lambda seed: s.hugging_face(seed, "gpt2"), lambda seed: s.by_hand(seed), lambda seed: s.of_torch(seed)]
    cases = []
    for i, kind in enumerate(ANYWHERE):
        seed = 100 + i
        cases.append(_sick(kind, "own", lambda i=i, seed=seed: own[i % 3](seed)))
        other = foreign[1 + i % 2] if kind == "attention logits grow" else foreign[i % 3]
        cases.append(_sick(kind, "foreign", lambda other=other, seed=seed: other(seed)))
    batch = {"norm": "batch", "num_layers": 2}
    pairs: dict[str, tuple[Callable[[], Trial], Callable[[], Trial]]] = {
        "deep post-norm": (
            lambda: s.native(150, placement="post", num_layers=16, dim=16),
            lambda: s.of_torch(150, first=False, layers=16, width=16),
        ),
        "no norms, deep": (
            lambda: _with(s.native(151, placement="none", num_layers=8, dim=16), lr=2e-2),
            lambda: _with(s.of_torch(151, layers=10), without_norms, lr=2e-2),
        ),
        "no final norm": (
            lambda: s.native(152, final_norm=False),
            lambda: _with(s.hugging_face(152, "gpt2"), without_final_norm),
        ),
        "BatchNorm ignores the mask": (
            lambda: s.tagger(153, norm=lambda width: s.BatchNormOfTokens(width), num_layers=2),
            lambda: s.torch_tagger(153, batch_norm=True),
        ),
        "BatchNorm over padding, no mask given": (
            lambda: s.tagger(154, mask=False, **batch),
            lambda: s.torch_tagger(154, batch_norm=True, mask=False),
        ),
        "BatchNorm over few cells": (
            lambda: s.tagger(155, rows=1, **batch),
            lambda: s.torch_tagger(155, rows=1, batch_norm=True, mask=False),
        ),
        "running statistics stand still": (
            lambda: s.tagger(156, norm="batch", norm_options={"momentum": 1e-4}),
            lambda: s.torch_tagger(156, batch_norm=True, momentum=1e-4, mask=False),
        ),
        "no causal mask": (
            lambda: _with(_as_decoder(s.tagger(157, mask=False, num_layers=3), 157), causal=True),
            lambda: s.by_hand(157, causal=False),
        ),
        "norm over positions": (
            lambda: s.native(158, norm=lambda width: s.BatchNormOfTokens(width)),
            lambda: _with(s.of_torch(158, activation=F.silu), _batch_norms),
        ),
    }  # fmt: skip
    cases += [
        _sick(kind, name, make)
        for kind, pair in pairs.items()
        for name, make in zip(("own", "foreign"), pair, strict=True)
    ]
    healthy: dict[str, Callable[[], Trial]] = {
        "decoder": lambda: s.native(160),
        "decoder, 12 layers": lambda: s.native(161, num_layers=12, dim=16),
        "decoder, 2 layers, 64 wide": lambda: s.native(162, num_layers=2, dim=64),
        "rms, rotary, swiglu": lambda: s.native(163, norm="rms", positions="rotary", activation="swiglu"),
        "post, 3 layers, warm-up": lambda: _with(s.native(164, placement="post", num_layers=3), schedule=warm(40)),
        "deepnorm, 12 layers": lambda: s.native(165, placement="deepnorm", num_layers=12, dim=16),
        "peri": lambda: s.native(166, placement="peri"),
        "sandwich": lambda: s.native(167, placement="sandwich"),
        "rezero": lambda: s.native(168, placement="rezero"),
        "SGD": lambda: _with(s.native(169), optimizer=sgd, lr=0.1),
        "Adam, clipped": lambda: _with(s.native(170), optimizer=adam, clip=1.0),
        "cosine to zero": lambda: _with(s.native(171), schedule=cosine(120)),
        "two micro-batches": lambda: _with(s.native(172), micro_batches=2),
        "autocast": lambda: _with(s.by_hand(173), autocast=True),
        "tied, rms": lambda: s.native(174, tie_embeddings=True, norm="rms"),
        "GPT-2": lambda: s.hugging_face(175, "gpt2"),
        "GPT-2, 8 layers": lambda: s.hugging_face(176, "gpt2", n_layer=8),
        "by hand": lambda: s.by_hand(177),
        "by hand, 8 layers, std 0.006": lambda: s.by_hand(178, layers=8, std=0.006),
        "by hand, std 0.1": lambda: s.by_hand(179, std=0.1),
        "torch pre": lambda: s.of_torch(180),
        "torch post, warm-up": lambda: _with(s.of_torch(181, first=False, layers=3), schedule=warm(40)),
        "tagger, BatchNorm with mask": lambda: s.tagger(182, norm="batch"),
        "torch tagger": lambda: s.torch_tagger(183),
        "torch tagger, unpadded BatchNorm": lambda: _with(s.of_torch(184, rows=16, causal=False), _batch_norms, causal=False),
        "docs": lambda: s.task(185, "docs"),
        "digits": lambda: s.task(186, "digits"),
        "dates": lambda: s.task(187, "dates"),
        "text": lambda: s.task(188, "text"),
        "digits, BatchNorm": lambda: s.task(189, "digits", norm="batch"),
        "low rate that learns": lambda: _with(s.native(190), lr=3e-4),
        "warm-up, weight decay": lambda: _with(s.by_hand(191), optimizer=decaying, schedule=warm(30)),
    }  # fmt: skip
    return cases + [Case("healthy", name, make) for name, make in healthy.items()]


def _batch_norms(trial: Trial) -> None:
    """nn.BatchNorm1d in place of the norms in torch's layers (whose fast path in evaluation asks norms for their eps, unless
    the activation rules it out)."""
    for block in trial.model.body.layers:
        width = block.norm1.normalized_shape[0]
        block.norm1, block.norm2 = s.BatchNormOfTokens(width), s.BatchNormOfTokens(width)


def _as_decoder(trial: Trial, seed: int) -> Trial:
    """An encoder given the task of a decoder: nothing hides the future."""
    trial.batch = s.next_token(seed, "tokens")
    return trial


def evaluation(turn: int = 0) -> list[Case]:
    """Other models, sizes and seeds than above; made after the thresholds were frozen. What is changed because of one turn is
    measured on the next: other seeds, and each fault in another model."""
    at = 10_000 * turn
    own = [
        lambda seed: s.native(seed, dim=32, num_layers=5, norm="rms"),
        lambda seed: s.native(seed, dim=20, num_layers=4, activation="relu", positions="learned"),
        lambda seed: s.native(seed, dim=40, num_layers=3, placement="sandwich", num_kv_heads=2),
        lambda seed: s.native(seed, dim=32, num_layers=6, positions="rotary", tie_embeddings=True),
    ]
    foreign = [
        lambda seed: s.hugging_face(seed, "llama"), lambda seed: s.hugging_face(seed, "neox"),
        lambda seed: s.hugging_face(seed, "qwen2", num_hidden_layers=5), lambda seed: s.hugging_face(seed, "phi"),
        lambda seed: s.hugging_face(seed, "opt"),
    ]  # fmt: skip
    cases = []
    for i, kind in enumerate(ANYWHERE):
        seed = at + 900 + i
        cases.append(_sick(kind, "own", lambda i=i, seed=seed: own[(i + turn) % 4](seed)))
        cases.append(_sick(kind, "foreign", lambda i=i, seed=seed: foreign[(i + 2 * turn) % 5](seed)))
    pairs: dict[str, tuple[Callable[[], Trial], Callable[[], Trial]]] = {
        "deep post-norm": (
            lambda: s.native(at + 950, placement="post", num_layers=20, dim=24, norm="rms"),
            lambda: _with(s.bert(at + 950, layers=20, width=24), lr=3e-3, schedule=None),
        ),
        "no norms, deep": (
            lambda: _with(s.native(at + 951, placement="none", num_layers=10, dim=24), lr=1e-2),
            lambda: _with(s.hugging_face(at + 951, "llama", num_hidden_layers=10, initializer_range=0.2), without_norms, lr=1e-2),
        ),
        "no final norm": (
            lambda: s.native(at + 952, final_norm=False, dim=32, num_layers=5, norm="rms"),
            lambda: _with(s.hugging_face(at + 952, "neox", initializer_range=0.1), without_final_norm),
        ),
        "BatchNorm ignores the mask": (
            lambda: s.tagger(at + 953, norm=lambda width: s.BatchNormOfTokens(width), num_layers=3, dim=24),
            lambda: s.bert(at + 953, batch_norm=True),
        ),
        "BatchNorm over padding, no mask given": (
            lambda: s.tagger(at + 954, mask=False, norm="batch", dim=24, num_layers=3),
            lambda: s.bert(at + 954, batch_norm=True, mask=False, width=24),
        ),
        "BatchNorm over few cells": (
            lambda: s.tagger(at + 955, rows=1, norm="batch", dim=24, num_layers=3),
            lambda: s.bert(at + 955, rows=1, batch_norm=True, width=24),
        ),
        "running statistics stand still": (
            lambda: s.tagger(at + 956, norm="batch", norm_options={"momentum": 1e-4}, dim=24, num_layers=3),
            lambda: _with(s.bert(at + 956, batch_norm=True, mask=False), slow_statistics),
        ),
        "no causal mask": (
            lambda: _with(_as_decoder(s.tagger(at + 957, mask=False, num_layers=4, norm="rms"), at + 957), causal=True),
            lambda: s.of_torch(at + 957, causal=False, layers=3, width=32),
        ),
        "norm over positions": (
            lambda: s.native(at + 958, norm=lambda width: s.BatchNormOfTokens(width), dim=32, num_layers=3),
            lambda: _with(s.of_torch(at + 958, layers=3, width=32, activation=F.silu), _batch_norms),
        ),
    }  # fmt: skip
    cases += [
        _sick(kind, name, make)
        for kind, pair in pairs.items()
        for name, make in zip(("own", "foreign"), pair, strict=True)
    ]
    healthy: dict[str, Callable[[], Trial]] = {
        "5 layers, 32 wide": lambda: s.native(at + 960, num_layers=5, dim=32),
        "16 layers": lambda: s.native(at + 961, num_layers=16, dim=16),
        "2 layers, 96 wide": lambda: _with(s.native(at + 962, num_layers=2, dim=96), lr=2e-3),
        "1 head, no bias": lambda: s.native(at + 963, num_heads=1, bias=False),
        "rms, learned positions": lambda: s.native(at + 964, norm="rms", positions="learned", dim=32),
        "relu, grouped keys": lambda: s.native(at + 965, activation="relu", num_kv_heads=2),
        "QK-norm, swiglu": lambda: s.native(at + 966, qk_norm="head", activation="swiglu", dim=32),
        "post, 4 layers, warm-up": lambda: _with(s.native(at + 967, placement="post"), schedule=warm(50), lr=2e-3),
        "deepnorm, 16 layers": lambda: s.native(at + 968, placement="deepnorm", num_layers=16, dim=16),
        "sub-ln": lambda: s.native(at + 969, placement="sub-ln"),
        "hybrid-norm": lambda: s.native(at + 970, placement="hybrid-norm"),
        "layernorm-scaling, 8 layers": lambda: s.native(at + 971, placement="layernorm-scaling", num_layers=8),
        "mix-ln, 8 layers": lambda: _with(s.native(at + 972, placement="mix-ln", num_layers=8), lr=1e-3),
        "normformer": lambda: s.native(at + 973, placement="normformer"),
        "reordered, QK-norm": lambda: s.native(at + 974, placement="reordered", qk_norm="head"),
        "dropout": lambda: s.native(at + 975, dropout=0.1, dim=32),
        "NAdam": lambda: _with(s.native(at + 976, dim=32), optimizer=nadam, lr=2e-3),
        "RMSprop": lambda: _with(s.native(at + 977), optimizer=rmsprop, lr=5e-4),
        "Adafactor": lambda: _with(s.native(at + 978), optimizer=adafactor, lr=2e-2),
        "SGD, clipped": lambda: _with(s.native(at + 979, dim=32), optimizer=sgd, lr=0.1, clip=1.0),
        "cosine, warm-up, clipped": lambda: _with(s.native(at + 980), schedule=cosine(130), clip=1.0),
        "four micro-batches": lambda: _with(s.hugging_face(at + 981, "llama", rows=4), micro_batches=4),
        "autocast, Llama": lambda: _with(s.hugging_face(at + 982, "llama"), autocast=True),
        "bfloat16, high rate": lambda: _with(s.native(at + 983), _to_bfloat16, lr=3e-3),
        "offset gains that start at zero": lambda: s.native(at + 984, norm="rms", norm_options={"gain": "offset"}),
        "Llama": lambda: s.hugging_face(at + 985, "llama"),
        "Llama, 8 layers": lambda: s.hugging_face(at + 986, "llama", num_hidden_layers=8),
        "GPT-NeoX": lambda: s.hugging_face(at + 987, "neox"),
        "OPT": lambda: s.hugging_face(at + 988, "opt"),
        "Qwen 2": lambda: s.hugging_face(at + 989, "qwen2"),
        "OLMo 2": lambda: s.hugging_face(at + 990, "olmo2"),
        "Phi": lambda: s.hugging_face(at + 991, "phi"),
        "Phi, deviation 0.1": lambda: s.hugging_face(at + 992, "phi", initializer_range=0.1),
        "BERT": lambda: s.bert(at + 993),
        "BERT, 6 layers": lambda: s.bert(at + 994, layers=6),
        "ViT": lambda: s.vit(at + 995),
        "torch pre, 6 layers": lambda: s.of_torch(at + 996, layers=6, width=32),
        "torch tagger, 3 layers": lambda: s.torch_tagger(at + 997, layers=3, width=32),
        "tagger, rms": lambda: s.tagger(at + 998, norm="rms", dim=24, num_layers=3),
        "tagger, BatchNorm with mask, 3 layers": lambda: s.tagger(at + 999, norm="batch", dim=24, num_layers=3),
        "docs, rms": lambda: s.task(at + 1000, "docs", norm="rms", num_layers=2),
        "digits, 4 layers": lambda: s.task(at + 1001, "digits", num_layers=4, norm="rms"),
        "digits, convolution, BatchNorm": lambda: s.task(at + 1002, "digits", architecture="convolution", norm="batch"),
        "dates, rms": lambda: s.task(at + 1003, "dates", norm="rms", num_layers=2),
        "text, 48 wide": lambda: s.task(at + 1004, "text", dim=48, num_layers=2),
    }  # fmt: skip
    return cases + [Case("healthy", name, make) for name, make in healthy.items()]


def _to_bfloat16(trial: Trial) -> None:
    trial.model.to(torch.bfloat16)


SETS: dict[str, Callable[[], list[Case]]] = {
    "tuning": tuning,
    "evaluation": evaluation,
    "second": lambda: evaluation(1),
    "third": lambda: evaluation(2),
}
