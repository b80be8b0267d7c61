"""Where a value lies changes no bit of its result: padding between real positions moves values between whole blocks and the last one.

The compiler builds the code of whole blocks and of the last, partial one apart, and may fuse a product with a sum in one and not in
the other. This is seen in the build that people use, and not in the sanitizer's.
"""

from __future__ import annotations

import pytest
import torch
from contract import make_layer

import normlab
from normlab.kernels import cpu

pytestmark = pytest.mark.skipif(cpu.native is None, reason="no native kernels in this installation")
CHANNELS, PADDED = 36, 131


def outcome(layer, x, grad, mask, planes):
    """(y, dx) of (positions, channels), and the gradients of the parameters."""
    turned = (lambda t: t.T.contiguous()[None]) if planes else (lambda t: t[None])
    x = turned(x).clone().requires_grad_()
    layer.zero_grad()
    y = layer(x, mask=None if mask is None else mask[None])
    y.backward(turned(grad))
    back = (lambda t: t[0].T) if planes else (lambda t: t[0])
    return back(y.detach()), back(x.grad), [p.grad.clone() for p in layer.parameters()]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("planes", [True, False], ids=["planes", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["batch", "group", "instance"])
def test_padding_between_positions_changes_no_bit(name, dtype, planes, training, isa):
    layer = make_layer(name, CHANNELS, dtype, channel_dim=1 if planes else -1).train(training)
    for _ in range(4):
        mask = torch.rand(PADDED) < 0.5
        mask[-1] = True
        real = int(mask.sum())
        x, grad = (torch.rand(2, real, CHANNELS) * 4 - 2).to(dtype)
        spread, spread_grad = (torch.full((PADDED, CHANNELS), torch.nan, dtype=dtype) for _ in range(2))
        spread[mask], spread_grad[mask] = x, grad
        with normlab.use_kernel("cpu"):
            y, dx, parameters = outcome(layer, x, grad, None, planes)
            y_padded, dx_padded, parameters_padded = outcome(layer, spread, spread_grad, mask, planes)
        assert torch.equal(y, y_padded[mask])
        assert torch.equal(dx, dx_padded[mask])
        for one, other in zip(parameters, parameters_padded, strict=True):
            assert torch.equal(one, other)
