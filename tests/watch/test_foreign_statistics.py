"""Quantities of norms with running statistics, and of 16-bit weights, on models that are not ours, against float64."""

from __future__ import annotations

import pytest
import torch
from foreign_models import MASK, USUAL, B, L, V, hugging, torch_whole, vit
from torch import nn

import normlab
from normlab import surgery

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SOUND = torch.randn(2, 1200, generator=torch.Generator().manual_seed(0))


def images(name, head="Model", **settings):
    def make():
        transformers = pytest.importorskip("transformers")
        model = getattr(transformers, f"{name}{head}")(getattr(transformers, f"{name}Config")(**settings))
        return model, lambda: model(pixel_values=IMAGES)[0]

    make.__name__ = name
    return make


def patch_tst():
    transformers = pytest.importorskip("transformers")
    config = transformers.PatchTSTConfig(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, d_model=16, num_hidden_layers=2,
                                         num_attention_heads=2, ffn_dim=24, attention_dropout=0, path_dropout=0, ff_dropout=0)  # fmt: skip
    model = transformers.PatchTSTModel(config)
    values = torch.randn(3, 16, 2, generator=torch.Generator().manual_seed(0))
    return model, lambda: model(past_values=values)[0]


def conformer():
    transformers = pytest.importorskip("transformers")
    settings = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "vocab_size": V,
    }
    model = transformers.Wav2Vec2ConformerModel(transformers.Wav2Vec2ConformerConfig(
        conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, position_embeddings_type=None, mask_time_prob=0.0, layerdrop=0.0, **settings))  # fmt: skip
    return model, lambda: model(SOUND)[0]


# With BatchNorm of their own.
BATCH_NORMED = [
    images("ResNet", hidden_sizes=[8, 12], depths=[1, 2], embedding_size=8, layer_type="basic"),
    images("RegNet", hidden_sizes=[8, 16], depths=[1, 1], embedding_size=8, groups_width=4),
    images("MobileNetV1", depth_multiplier=0.25, image_size=32),
    images("MobileNetV2", depth_multiplier=0.25, image_size=32, finegrained_output=False),
    images("MobileViT", hidden_sizes=[8, 8, 8], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16], num_attention_heads=2, patch_size=2, image_size=32),
    images("Levit", hidden_sizes=[8, 8, 8], num_attention_heads=[1, 1, 1], depths=[1, 1, 1], key_dim=[4, 4, 4], image_size=32,
           mlp_ratio=[2, 2, 2], attention_ratio=[2, 2, 2]),
    images("Cvt", embed_dim=[8, 12], depth=[1, 2], num_heads=[1, 2], num_channels=3, patch_sizes=[7, 3], patch_stride=[4, 2], patch_padding=[2, 1],
           mlp_ratio=[2.0, 2.0], attention_drop_rate=[0.0, 0.0], drop_rate=[0.0, 0.0], drop_path_rate=[0.0, 0.0], qkv_bias=[True, True],
           cls_token=[False, True], qkv_projection_method=["dw_bn", "dw_bn"], kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2],
           padding_q=[1, 1], stride_q=[1, 1]),
    images("EfficientNet", width_coefficient=0.25, depth_coefficient=0.3, image_size=32, hidden_dim=320, drop_connect_rate=0.0),
    images("SwiftFormer", embed_dims=[8, 8, 12, 16], depths=[1, 1, 1, 1], image_size=32, drop_path_rate=0.0),
    images("TextNet", head="Model", conv_layer_kernel_sizes=[[[3, 3]], [[3, 3]], [[3, 3]], [[3, 3]]], conv_layer_strides=[[1], [2], [2], [1]],
           hidden_sizes=[8, 8, 8, 8, 8], stem_out_channels=8),
    images("Segformer", head="ForSemanticSegmentation", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 12], patch_sizes=[7, 3],
           strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=12, classifier_dropout_prob=0.0, drop_path_rate=0.0),
    patch_tst, conformer,
]  # fmt: skip


class OfTokens(nn.Module):
    """BatchNorm in the place of another norm: over sequences and tokens, padding included."""

    def __init__(self, width):
        super().__init__()
        self.bn = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.bn(x) if x.dim() == 2 else self.bn(x.transpose(1, 2)).transpose(1, 2).contiguous()


def batch_normed(make):
    """The architecture with BatchNorm in every place of a norm over the model's width."""

    def changed():
        model, call = make("eager")
        width = max(s.module.weight.numel() for s in surgery.find_norms(model) if s.kind in ("layer", "rms"))
        for site in surgery.find_norms(model):
            if site.kind in ("layer", "rms") and site.module.weight.numel() == width:
                parent, _, child = site.name.rpartition(".")
                setattr(model.get_submodule(parent), child, OfTokens(width))
        tokens = torch.randint(3, V, (B, L), generator=torch.Generator().manual_seed(1))
        return model, lambda: call(tokens)

    changed.__name__ = make.__name__
    return changed


class Seen:
    """What a BatchNorm got and gave, and its statistics before; of its first call."""

    def __init__(self, model):
        self.found = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.register_forward_pre_hook(lambda m, args, n=name: self.before(n, m, args[0]))
                module.register_forward_hook(lambda m, args, y, n=name: self.after(n, y))

    def after(self, name, y):
        self.found[name].setdefault("y", y.detach().double())

    def before(self, name, module, x):
        if name not in self.found:
            self.found[name] = {"x": x.detach().double(), "mean": module.running_mean.double().clone(),
                                "var": module.running_var.double().clone(), "module": module}  # fmt: skip


def cells(t, mask=None):
    """(cells, channels), the real ones."""
    t = t.movedim(1, -1)
    if mask is not None and t.shape[:2] == mask.shape:
        t = t[mask]
    elif mask is not None and t.shape[:2] == mask.T.shape:
        t = t[mask.T]
    elif mask is not None:
        t = t[mask.flatten()] if len(t) == mask.numel() else t
    return t.reshape(-1, t.shape[-1])


def direct(seen, mask):
    """Everything that is said of a norm with running statistics."""
    m, x, y = seen["module"], cells(seen["x"], mask), cells(seen["y"], mask)
    wide = cells(seen["x"])
    gain = torch.ones(()) if m.weight is None else m.weight.detach().double()
    bias = torch.zeros(()) if m.bias is None else m.bias.detach().double()
    later = (x - seen["mean"]) / (seen["var"] + m.eps).sqrt() * gain + bias
    spread, var = x.std(0, correction=0), x.var(0, correction=0)
    found = {
        "inference_gap": (y - later).square().mean().sqrt() / y.square().mean().sqrt(),
        "batch_mean_distance": ((seen["mean"] - x.mean(0)).abs() / spread).mean(),
        "batch_var_distance": (seen["var"].sqrt() / spread - 1).abs().mean(), "eps_share": (m.eps / (var + m.eps)).mean(),
    }  # fmt: skip
    if mask is not None:
        found["running_distance_padded"] = ((seen["mean"] - wide.mean(0)).abs() / wide.std(0, correction=0)).mean()
    return found


def compare(tmp_path, make, mask):
    torch.manual_seed(0)
    model, call = make()
    model.train()
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                for p in (m.weight, m.bias):
                    if p is not None:
                        p.add_(0.3 * torch.randn_like(p))
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2.0)
    with normlab.watch(model, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        seen = Seen(model)
        call().square().mean().backward()
        watch.step(loss=1.0)
        said = watch.coverage()
    run = normlab.Run(tmp_path / "run")
    assert not list(run.events()) and seen.found
    table = {q: {s: v.last() for s, v in sites.items()} for q, sites in run.table().items()}
    compared = 0
    for site, one in seen.found.items():
        if "y" not in one or cells(one["x"], mask).std(0, correction=0).min() < 1e-3:
            continue  # of a feature that is the same everywhere nothing can be told but its eps
        for quantity, value in direct(one, mask).items():
            assert table[quantity][site] == pytest.approx(float(value), rel=2e-3, abs=2e-5), (quantity, site, said)
            compared += 1
    return compared


@pytest.mark.parametrize("make", BATCH_NORMED, ids=lambda m: m.__name__)
def test_norms_with_running_statistics_of_other_makers(tmp_path, make):
    assert compare(tmp_path, make, None) >= 4


TEXT = [m for m in USUAL if m not in (vit, torch_whole)]


@pytest.mark.parametrize("make", TEXT, ids=lambda m: m.__name__)
def test_running_statistics_next_to_padding(tmp_path, make):
    assert compare(tmp_path, batch_normed(make), MASK) >= 10


@pytest.mark.parametrize("make", [m for m in USUAL if m is not torch_whole], ids=lambda m: m.__name__)
def test_the_share_of_16_bit_weights_that_a_step_leaves_as_they_were(tmp_path, make):
    torch.manual_seed(0)
    model, call = make("eager")
    model.to(torch.bfloat16).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    blocks = surgery.find_blocks(model)
    with normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every=1, max_overhead=None) as watch:
        tokens = torch.randint(3, V, (B, L), generator=torch.Generator().manual_seed(1))
        out = model(pixel_values=torch.randn(2, 3, 8, 8).bfloat16()).logits if make is vit else call(tokens)
        out.float().square().mean().backward()
        old = {b.name: [p.detach().clone() for p in b.module.parameters()] for b in blocks}
        grads = {b.name: [None if p.grad is None else p.grad.clone() for p in b.module.parameters()] for b in blocks}
        optimizer.step()
        watch.step(loss=1.0)
    found = {s: v.last() for s, v in normlab.Run(tmp_path / "run").series("unmoved_share").items()}
    shares = {}
    for b in blocks:
        asked = stuck = 0
        for p, before, grad in zip(b.module.parameters(), old[b.name], grads[b.name], strict=True):
            if grad is not None and p.dim() > 1:
                asked += int((grad != 0).sum())
                stuck += int(((grad != 0) & (p == before)).sum())
        if asked:
            shares[b.name] = stuck / asked
    assert shares and found == pytest.approx(shares, rel=1e-5)
    assert any(0 < share < 1 for share in shares.values())


def test_every_quantity_meets_ten_architectures():
    assert min(len(BATCH_NORMED), len(TEXT), len(USUAL) - 1) >= 10
    assert hugging is not None
