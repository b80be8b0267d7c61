"""The contract: every norm in every placement in every architecture learns one batch by heart, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formulas import (
    NAMES,
)
from torch import Tensor, nn

from normlab import NORMS
from normlab.models import ARCHITECTURES, build

# ---- the contract ----------------------------------------------------------------------------------------------------

CAUSAL = ("decoder", "encoder-decoder")
STATISTICS = {"batch": "position", "group": "position", "power": "running"}
STEPS, GOAL = 60, 0.3


def may_be_refused(architecture: str, norm: str, placement: str) -> bool:
    """No causal form; statistics that leave nothing of a mean over positions; attention that is not there."""
    if norm == "instance" and architecture != "encoder":
        return True
    return architecture == "convolution" and placement in ("normformer", "hybrid-norm")


def tiny(architecture: str, norm: str, placement: str, **more: Any) -> Any:
    settings = {
        "dim": 24, "num_heads": 2, "num_layers": 2, "ffn_dim": 48, "vocab_size": 11, "max_length": 8, "image_size": 4,
        "num_classes": 4 if architecture in ("vision", "convolution") else None,
        "causal_statistics": STATISTICS.get(norm) if architecture in CAUSAL else None,
    }  # fmt: skip
    return build(architecture=architecture, norm=norm, placement=placement, **{**settings, **more})


def task_of(architecture: str, model: Any) -> tuple[list[nn.Parameter], Callable[[], Tensor], nn.Parameter]:
    """(what is learned, the loss on one fixed batch, the first matrix)."""
    random = torch.Generator().manual_seed(3)
    tokens, labels = (torch.randint(0, 11, (4, 6), generator=random) for _ in range(2))
    mask = torch.arange(6) < torch.tensor([6, 5, 4, 6])[:, None]
    images = torch.randn(4, 1, 4, 4, generator=random)
    parameters = list(model.parameters())
    if architecture == "encoder":
        head = nn.Linear(24, 11)
        parameters += head.parameters()
        return (
            parameters,
            lambda: F.cross_entropy(head(model(tokens, mask)[mask]), labels[mask]),
            model.embedding.token.weight,
        )
    if architecture == "decoder":
        return parameters, lambda: F.cross_entropy(model(tokens).mT, labels), model.embedding.token.weight
    if architecture == "encoder-decoder":
        loss = lambda: F.cross_entropy(model(tokens, tokens.flip(1), mask).mT, labels)  # noqa: E731
        return parameters, loss, model.source.token.weight
    first = model.patch.weight if architecture == "vision" else model.stem.weight
    return parameters, lambda: F.cross_entropy(model(images), torch.arange(4)), first


def assert_learns(parameters: list[nn.Parameter], loss: Callable[[], Tensor], first: nn.Parameter) -> None:
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, fused=True)
    start = loss()
    start.backward()
    assert torch.isfinite(start)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in parameters)
    reached = False
    for step in range(STEPS):
        reached |= bool(first.grad.abs().max() > 1e-7)
        optimizer.step()
        optimizer.zero_grad()
        now = loss()
        if step > 0 and now < GOAL * start:
            assert reached, "no gradient came to the first matrix"
            return
        now.backward()
    pytest.fail(f"loss went from {start.item():.3f} to {now.item():.3f} only")


@pytest.mark.parametrize("placement", NAMES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_norm_in_every_place_learns_one_batch_or_is_refused(architecture: str, norm: str, placement: str) -> None:
    try:
        model = tiny(architecture, norm, placement)
    except ValueError as refusal:
        assert may_be_refused(architecture, norm, placement)
        assert norm in str(refusal) or placement in str(refusal)
        assert len(str(refusal).split()) > 8, "a refusal gives its reason"
        return
    assert_learns(*task_of(architecture, model))


@pytest.mark.parametrize("norm", ["batch", "group", "instance", "power"])
@pytest.mark.parametrize("architecture", CAUSAL)
def test_norms_over_tokens_in_a_causal_stack_are_refused_unless_made_safe(architecture: str, norm: str) -> None:
    with pytest.raises(ValueError, match=rf"{norm}.*later.*layer, rms, scale") as refusal:
        tiny(architecture, norm, "pre", causal_statistics=None)
    assert ("causal_statistics" in str(refusal.value)) == (norm != "instance")


@pytest.mark.parametrize("norm", ["batch", "power"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_running_forms_learn_in_a_decoder(norm: str, placement: str) -> None:
    assert_learns(*task_of("decoder", tiny("decoder", norm, placement, causal_statistics="running")))


@pytest.mark.parametrize("placement", ["pre", "post", "reordered"])
def test_classifier_after_instance_norm_learns_or_is_refused(placement: str) -> None:
    """The mean over tokens of what was centred over tokens is zero: such a model cannot see its input."""
    try:
        model = tiny("encoder", "instance", placement, num_classes=4)
    except ValueError as refusal:
        assert "instance" in str(refusal)
        return
    tokens = torch.randint(0, 11, (4, 6))
    assert_learns(list(model.parameters()), lambda: F.cross_entropy(model(tokens), torch.arange(4)),
                  model.embedding.token.weight)  # fmt: skip


@pytest.mark.parametrize("dim", [16, 32, 64])
def test_group_norm_of_single_tokens_leaves_something_to_see_at_small_widths(dim: int) -> None:
    """A group of one channel of one token has no spread: all comes out as the bias."""
    model = tiny("decoder", "group", "pre", dim=dim)
    assert_learns(*task_of("decoder", model))
