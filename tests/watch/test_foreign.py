"""Every quantity on models that are not ours, against a direct computation in float64 from what was seen at the same places."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from foreign_models import MASK, NIGHTLY, USUAL, B, L, V, bert, gpt2, llama, opt, qwen3, torch_post, torch_pre, vit
from torch import nn
from torch.overrides import TorchFunctionMode

import normlab
from normlab import surgery

STEPS = 2


# On every architecture; those of a mean on all that centre, those of attention where a softmax can be listened to.
ALWAYS = {
    "length", "length_spread", "mean_angle", "anisotropy", "kurtosis_in", "kurtosis_out", "outlier_features", "outlier_tokens",
    "batch_mean_distance", "batch_var_distance", "grad_through_var", "eps_share", "stream_rms", "stream_grad", "stream_growth", "param_grad",
    "grad_norm", "gain_rms", "gain_max", "gain_drift", "gain_grad", "update_ratio", "weight_scale", "output_spread", "stale_gradient",
}  # fmt: skip
WITH_PADDING = {"padding_share", "batch_mean_distance_padded", "batch_var_distance_padded"}
PLACED = {gpt2: "pre", llama: "pre", bert: "post", opt: "pre", torch_post: "post", torch_pre: "pre"}


class Seen:
    """What passed a module in each step: its first call alone."""

    def __init__(self, model, names):
        self.steps, self.handles = [], []
        modules = dict(model.named_modules())
        for name in names:
            self.handles.append(modules[name].register_forward_hook(self.hook(name), with_kwargs=True))

    def begin(self):
        self.steps.append({})

    def hook(self, name):
        def see(module, args, kwargs, output):
            now = self.steps[-1]
            if name in now:
                return
            x = args[0] if args else next(iter(kwargs.values()))
            y = output[0] if isinstance(output, (tuple, list)) else output
            now[name] = {"x": x.detach().double(), "y": y.detach().double()}
            if y.requires_grad:
                y.register_hook(lambda grad: now[name].__setitem__("grad", grad.detach().double()))

        return see


def rows(t, masked):
    """(tokens, features), real ones, wherever the tokens lie."""
    if masked and t.shape[:2] == (B, L):
        t = t[MASK]
    elif masked and t.shape[:2] == (L, B):
        t = t[MASK.T]
    elif masked and t.dim() == 2 and len(t) == B * L:
        t = t[MASK.flatten()]
    elif masked and t.dim() == 4 and t.shape[0] == B and t.shape[2] == L:
        t = t.transpose(1, 2)[MASK]
    return t.reshape(-1, t.shape[-1])


def rms(t):
    return t.square().mean().sqrt()


def of_norm(site, gain, seen, before, masked):
    """Every quantity of a norm, from what passed it now and in the step before."""
    x, y, grad = (rows(seen[key], masked) for key in ("x", "y", "grad"))
    lengths = y.norm(dim=1) / math.sqrt(y.shape[1])
    unit = F.normalize(y, dim=1)
    cosines = unit @ unit.T
    n = len(y)
    kurtosis = lambda t: (t - t.mean()).pow(4).mean() / t.var(correction=0) ** 2  # noqa: E731
    over = lambda t: (t > 6 * t.median()).double().mean()  # noqa: E731
    earlier = rows(before["x"], masked)
    found = {
        "length": lengths.mean(), "length_spread": lengths.std() / lengths.mean(),
        "mean_angle": torch.rad2deg(torch.asin(unit.sum(1).abs() / math.sqrt(y.shape[1]))).mean(),
        "anisotropy": (cosines.sum() - cosines.trace()) / (n * (n - 1)), "kurtosis_in": kurtosis(x), "kurtosis_out": kurtosis(y),
        "outlier_features": over(x.pow(2).mean(0).sqrt()), "outlier_tokens": over(x.pow(2).mean(1).sqrt()),
        "batch_mean_distance": ((earlier.mean(0) - x.mean(0)).abs() / x.std(0, correction=0)).mean(),
        "batch_var_distance": (earlier.std(0, correction=0) / x.std(0, correction=0) - 1).abs().mean(),
    }  # fmt: skip
    if masked and x.numel() != seen["x"].numel():
        found["padding_share"] = 1 - MASK.double().mean()
        wide, early = (rows(t, False) for t in (seen["x"], before["x"]))
        found["batch_mean_distance_padded"] = ((early.mean(0) - wide.mean(0)).abs() / wide.std(0, correction=0)).mean()
        found["batch_var_distance_padded"] = (early.std(0, correction=0) / wide.std(0, correction=0) - 1).abs().mean()
    spread = x.var(1, correction=0) if site.kind == "layer" else x.square().mean(1)
    found["eps_share"] = (site.eps / (spread + site.eps)).mean()
    found |= through_statistics(x, grad, gain, site.kind, site.eps)
    return found


def through_statistics(x, grad, gain, kind, eps):
    """By autograd: the gradient with both statistics held still, with one of them, with none."""

    def flows(hold_mean, hold_var):
        leaf = x.clone().requires_grad_()
        mean = leaf.mean(-1, keepdim=True) if kind == "layer" else torch.zeros_like(leaf[:, :1])
        mean = mean.detach() if hold_mean else mean
        centre = mean if kind == "layer" else 0.0
        inside = leaf.mean(-1, keepdim=True) if kind == "layer" else 0.0
        var = (leaf - inside).square().mean(-1, keepdim=True)
        var = var.detach() if hold_var else var
        ((leaf - centre) / torch.sqrt(var + eps) * gain).backward(grad)
        return leaf.grad

    direct = flows(True, True)
    found = {"grad_through_var": rms(flows(True, False) - direct) / rms(direct)}
    if kind == "layer":
        found["grad_through_mean"] = rms(flows(False, True) - direct) / rms(direct)
    return found


def of_block(seen, masked):
    y = rows(seen["y"], masked)
    found = {"stream_rms": rms(y), "stream_grad": seen["grad"].norm()}
    if seen["x"].shape == seen["y"].shape:
        x = rows(seen["x"], masked)
        cosine = F.cosine_similarity(x, y, dim=1)
        found |= {
            "branch_share": (y - x).norm() / y.norm(),
            "cosine": cosine.mean(),
            "angle": (torch.acos(cosine) / math.pi).mean(),
        }
    return found


class Listening(TorchFunctionMode):
    """Below the watch's own: what the model's softmaxes are given."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.softmax:
            self.scores.append(args[0].detach().double())
        return func(*args, **(kwargs or {}))


def scales(model, blocks):
    """Of a block the largest rms * sqrt(smaller side) of its matrices; of a linear layer outside its own."""
    scale = lambda w: rms(w.detach().double()) * math.sqrt(min(w.shape[-2:]))  # noqa: E731
    found = {b.name: max(scale(p) for p in b.module.parameters() if p.dim() in (2, 3)) for b in blocks}
    inside = {m for b in blocks for m in b.module.modules()}
    outside = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m not in inside]
    return found | {n: scale(m.weight) for n, m in outside}


def spread_of(out, masked):
    """How far answers differ from input to input."""
    y = rows(out.detach().double(), masked)
    y = y - y.mean(1, keepdim=True)
    return rms(y - y.mean(0))


def staleness(grad, brought):
    """What no multiple of this step's gradient explains."""
    left = grad - (grad * brought).sum() / brought.square().sum() * brought
    return left.norm() / grad.norm()


def size(tensors):
    return torch.sqrt(sum(t.detach().double().square().sum() for t in tensors))


@pytest.mark.parametrize(
    "make", [*USUAL, *(pytest.param(m, marks=pytest.mark.nightly) for m in NIGHTLY)], ids=lambda m: m.__name__
)
def test_every_quantity_is_what_a_direct_computation_gives(tmp_path, make):
    torch.manual_seed(0)
    model, call = make("eager")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))  # gains and biases that could be mistaken for none
    model.train()
    norms, blocks = surgery.find_norms(model), surgery.find_blocks(model)
    assert norms and blocks
    parameters = {b.name: list(b.module.parameters()) for b in blocks}
    start = {s.name: s.weight.detach().double() + (s.gain == "offset") for s in norms if s.weight is not None}
    scores: list = []
    first = scales(model, blocks)
    small = None  # the smallest parameter that gets a gradient
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = normlab.watch(model, optimizer=optimizer, out=tmp_path / "run", every=1, max_overhead=None, preset="full")
    seen = Seen(model, [s.name for s in (*norms, *blocks)])
    expected: dict = {}
    gains: dict = {}
    for _ in range(STEPS):
        seen.begin()
        scores.append([])
        tokens = torch.randint(3, V, (B, L))
        with Listening(scores[-1]):
            out = call(tokens)
            loss = out.square().mean()
        # Gradients are not cleared: what the optimizer uses is the sum of both steps.
        kept = None if small is None else small.grad.clone()
        loss.backward()
        expected = {
            "output_spread": {"model": spread_of(out, make is not vit)},
            "param_grad": {},
            "update_ratio": {},
            "gain_rms": {},
            "gain_max": {},
            "gain_drift": {},
            "gain_grad": {},
        }
        if kept is not None:  # in the first step nobody knows which parameters get a gradient
            expected["stale_gradient"] = {"model": staleness(small.grad.double(), (small.grad - kept).double())}
        small = min((p for p in model.parameters() if p.numel() >= 4 and p.grad is not None), key=lambda p: p.numel())
        for name, own in parameters.items():
            expected["param_grad"][name] = size(p.grad for p in own if p.grad is not None)
        expected["grad_norm"] = {"model": size(p.grad for p in model.parameters() if p.grad is not None)}
        for s in norms:
            if s.weight is not None:
                gain = gains[s.name] = s.weight.detach().double() + (s.gain == "offset")
                expected["gain_rms"][s.name], expected["gain_max"][s.name] = rms(gain), gain.abs().max()
                expected["gain_drift"][s.name] = (gain - start[s.name]).norm() / start[s.name].norm()
                if s.weight.grad is not None:
                    expected["gain_grad"][s.name] = s.weight.grad.double().norm()
        old = {name: [p.detach().clone() for p in own] for name, own in parameters.items()}
        optimizer.step()
        for name, own in parameters.items():
            moved = [p.detach().double() - o.double() for p, o in zip(own, old[name], strict=True)]
            expected["update_ratio"][name] = size(moved) / size(old[name])
        watch.step(loss=loss)
    coverage = watch.coverage()
    watch.close()
    run = normlab.Run(tmp_path / "run")
    assert not list(run.events()), list(run.events())
    table = {q: {s: v.last() for s, v in sites.items() if v.steps[-1] == STEPS} for q, sites in run.table().items()}
    table["weight_scale"] = {site: v.last() for site, v in run.series("weight_scale").items() if v.steps == [1]}
    expected["weight_scale"] = first
    masked = make is not vit
    now, before = seen.steps[-1], seen.steps[-2]
    for s in norms:
        if s.name in now and "grad" in now[s.name] and s.kind in ("layer", "rms"):
            for quantity, value in of_norm(s, gains.get(s.name, 1.0), now[s.name], before[s.name], masked).items():
                expected.setdefault(quantity, {})[s.name] = value
    angles, sizes = {}, {}
    for b in blocks:
        if b.name in now:
            for quantity, value in of_block(now[b.name], masked).items():
                expected.setdefault(quantity, {})[b.name] = value
    for stack in dict.fromkeys(b.stack for b in blocks):
        names = [b.name for b in blocks if b.stack == stack and b.name in now]
        site = "model" if len(names) == len(blocks) else stack
        angles, sizes = ([expected.get(q, {}).get(n) for n in names] for q in ("angle", "stream_rms"))
        if len(names) > 1 and None not in angles:
            turns = torch.stack(angles)
            expected.setdefault("effective_depth", {})[site] = turns.sum() ** 2 / turns.square().sum()
        if len(names) > 1:
            expected.setdefault("stream_growth", {})[site] = sizes[-1] / sizes[0]
    compared = 0
    for quantity, sites in expected.items():
        for site, value in sites.items():
            assert site in table.get(quantity, {}), (quantity, site, coverage)
            assert table[quantity][site] == pytest.approx(float(value), rel=2e-3, abs=2e-5), (quantity, site)
            compared += 1
    assert compared > 50 and "mask not used" not in coverage
    assert set(expected) >= ALWAYS | (set() if make is vit else WITH_PADDING)
    if make in PLACED:
        assert run.info["structure"]["placement"] == PLACED[make]
    attention_is_compared(table, run.info["sites"]["attention"], [s for s in scores[-1] if s.dim() == 4])


def attention_is_compared(table, sites, scores):
    """In the order of the calls. torch's own attention calls no softmax that could be listened to: the other file has it."""
    if not scores:
        return
    assert len(sites) == len(scores)
    for site, t in zip(sites, scores, strict=True):
        visible = (t > -5e3).sum(-1)
        share = t.masked_fill(t <= -5e3, -math.inf).softmax(-1)
        even = (torch.special.entr(share).sum(-1) / visible.double().log())[visible > 1].mean()
        assert table["max_logit"][site] == pytest.approx(float(t.max()), rel=1e-4), site
        assert table["attention_entropy"][site] == pytest.approx(float(even), rel=1e-3), site


@pytest.mark.parametrize("make", [gpt2, llama, qwen3, bert, opt], ids=lambda m: m.__name__)
def test_fused_attention_reads_as_the_one_written_out(tmp_path, make):
    """The same weights and tokens, through torch's function and by hand: an independent computation of either."""
    tokens = torch.randint(3, V, (B, L))
    found = []
    for how in ("eager", "sdpa"):
        torch.manual_seed(0)
        model, call = make(how)
        model.train()
        with normlab.watch(model, out=tmp_path / how, every=1, max_overhead=None) as watch:
            call(tokens).square().mean().backward()
            watch.step(loss=1.0)
        table = normlab.Run(tmp_path / how).table()
        found.append({(q, s): v.last() for q in ("max_logit", "attention_entropy") for s, v in table[q].items()})
    assert len(found[0]) == 4 and found[0] == pytest.approx(found[1], rel=1e-4)
