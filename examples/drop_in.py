"""Replace nn.LayerNorm by normlab.LayerNorm in a Transformer encoder, through its state_dict.

Prints how far outputs and gradients of the two encoders lie apart: some roundings of float32.
"""

import copy

import torch
from torch import nn

import normlab


def replace_layer_norms(module: nn.Module) -> int:
    """Put a normlab.LayerNorm with the same parameters in the place of every nn.LayerNorm; return how many."""
    replaced = 0
    for name, child in module.named_children():
        if isinstance(child, nn.LayerNorm):
            ours = normlab.LayerNorm(
                child.normalized_shape, child.eps, child.elementwise_affine, child.bias is not None
            )
            ours.load_state_dict(child.state_dict())
            setattr(module, name, ours)
            replaced += 1
        else:
            replaced += replace_layer_norms(child)
    return replaced


def main() -> None:
    torch.manual_seed(0)
    # In eval mode without gradients nn.TransformerEncoder takes a fast path that reads the parameters of its norms and
    # never calls them. Switch it off, or the new layers would not be used there.
    torch.backends.mha.set_fastpath_enabled(False)
    block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(64), enable_nested_tensor=False)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn_like(p))
    ours = copy.deepcopy(theirs)
    print(f"replaced {replace_layer_norms(ours)} LayerNorms")
    ours.load_state_dict(theirs.state_dict())  # the names are the same, so whole checkpoints load

    x = torch.randn(8, 20, 64)
    upstream = torch.randn(8, 20, 64)
    y, z = ours(x), theirs(x)
    y.backward(upstream)
    z.backward(upstream)
    torch.testing.assert_close(y, z)
    print(f"outputs:   largest difference {(y - z).abs().max():.1e}, largest value {z.abs().max():.1f}")
    worst = 0.0
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
        worst = max(worst, ((a.grad - b.grad).abs().max() / b.grad.abs().max().clamp(min=1e-3)).item())
    print(f"gradients: largest relative difference {worst:.1e} over {len(list(ours.parameters()))} parameters")


if __name__ == "__main__":
    main()
