"""Where attention happens: torch's own function, torch's own module, or a softmax over scores written out by hand."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .frames import AttentionFrame

HIDDEN = -5e3  # a score or an additive mask below this hides its key: masks add -1e4, a type's lowest value or -inf
SOFTMAXES = frozenset((nn.functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax))


class SeeAttention(TorchFunctionMode):
    """Lets every function through; shows what attention was given, after it has been computed."""

    def __init__(
        self, see: Callable[[AttentionFrame], None], in_a_block: Callable[[], bool], miss: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.see, self.in_a_block, self.miss = see, in_a_block, miss

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention:
            self.see(_of_function(*args, **kwargs))
        elif func in SOFTMAXES and self.in_a_block():
            if (frame := _of_softmax(*args, **kwargs)) is not None:
                self.see(frame)
            elif result.dim() == 3:
                self.miss("a softmax over 3 axes, not 4")
        return result


def _of_function(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> AttentionFrame:  # fmt: skip
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return AttentionFrame("", query, key, attn_mask, is_causal, factor)
    return AttentionFrame("", query, key, attn_mask > HIDDEN, is_causal, factor, bias=attn_mask)


def _of_softmax(input: Tensor, dim: Any = None, *_: Any, **__: Any) -> AttentionFrame | None:
    """Scores (B, H, queries, keys) inside of a block; what routes to experts or mixes branches has fewer axes."""
    if not isinstance(input, Tensor) or input.dim() != 4 or not input.is_floating_point() or dim not in (-1, 3):
        return None
    return AttentionFrame("", None, None, None, False, 1.0, logits=input.detach())


@torch.no_grad()
def of_module(module: nn.MultiheadAttention, args: Any, kwargs: Any) -> AttentionFrame | None:
    """torch's own module shows nothing of its inside: queries and keys are computed here once more. None where they have matrices
    of other forms."""
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    query, key, width = given["query"], given["key"], module.embed_dim
    if module.in_proj_weight is None or query.dim() != 3 or query.is_nested:
        return None
    own = module.in_proj_bias
    parts = []
    for x, at in ((query, 0), (key, width)):
        y = nn.functional.linear(
            x.detach(), module.in_proj_weight[at : at + width], None if own is None else own[at : at + width]
        )
        y = y if module.batch_first else y.transpose(0, 1)
        parts.append(y.unflatten(-1, (module.num_heads, -1)).transpose(1, 2))
    allowed: Tensor | None = None
    bias: Tensor | None = None
    for mask, shape in ((given.get("attn_mask"), None), (given.get("key_padding_mask"), (len(parts[0]), 1, 1, -1))):
        if mask is None:
            continue
        if shape is not None:
            mask = mask.view(shape)
        elif mask.dim() == 3:
            mask = mask.view(-1, module.num_heads, *mask.shape[1:])
        if mask.dtype == torch.bool:
            may = ~mask
        else:
            may = mask > HIDDEN
            bias = mask if bias is None else bias + mask
        allowed = may if allowed is None else allowed & may
    return AttentionFrame("", parts[0], parts[1], allowed, False, parts[0].shape[-1] ** -0.5, bias=bias)
