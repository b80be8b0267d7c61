"""Layers of every norm with random parameters, and inputs for them, in float64 unless told otherwise."""

import torch

import normlab
from normlab import NORMS

F64 = torch.float64
WIDTH = 15  # divisible by the groups, not by any vector


def make_layer(name, dtype=F64, **options):
    """Any layer of the table, or "residual", with random gain and bias."""
    build = normlab.ResidualNorm if name == "residual" else NORMS[name].layer
    if name == "instance":
        options.setdefault("affine", True)
    if name == "rms":
        options.setdefault("eps", 1e-3)  # the default depends on the dtype
    layer = build(*((3, WIDTH) if name == "group" else (WIDTH,)), dtype=dtype, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape) * 0.5 + 0.75)
    return layer


def inputs_of(name, shape=(3, 5, WIDTH), dtype=F64, requires_grad=True):
    return [
        torch.randn(shape, dtype=dtype).requires_grad_(requires_grad) for _ in range(2 if name == "residual" else 1)
    ]


def random_mask(*shape):
    """At least one real and one padded position."""
    mask = torch.rand(shape) < 0.6
    mask.view(-1)[:2] = torch.tensor([True, False])
    return mask


def upstream(outputs):
    return [torch.randn_like(t) for t in (outputs if isinstance(outputs, tuple) else (outputs,))]


def seeded(function, *args, **options):
    """The same draw at every call: gradcheck calls many times."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return function(*args, **options)
