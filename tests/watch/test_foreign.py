"""Every quantity on models that are not ours, against a direct computation in float64 from what was seen at the same places."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import normlab
from normlab import surgery

B, L, V = 3, 5, 23
MASK = torch.arange(L) < torch.tensor([[5], [2], [4]])
STEPS = 2


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def hugging(name, head="ForCausalLM", implementation="eager", **settings):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        **{"vocab_size": V, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **settings}
    )
    config._attn_implementation = implementation
    return getattr(transformers, f"{name}{head}")(config)


SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}


def text(model, **more):
    def call(tokens):
        return model(input_ids=tokens, attention_mask=MASK.long(), **more).logits

    return call


def seq2seq(model):
    return lambda tokens: model(input_ids=tokens, attention_mask=MASK.long(), decoder_input_ids=tokens.flip(0),
                                decoder_attention_mask=MASK.long()).logits  # fmt: skip


def gpt2(how):
    m = hugging(
        "GPT2",
        "LMHeadModel",
        how,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=16,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return m, text(m)


def llama(how):
    m = hugging("Llama", implementation=how, **{k: v for k, v in GROUPED.items()})
    return m, text(m)


def qwen3(how):
    m = hugging("Qwen3", implementation=how, **GROUPED)
    return m, text(m)


def gemma2(how):
    m = hugging("Gemma2", implementation=how, **GROUPED)
    return m, text(m)


def bert(how):
    m = hugging("Bert", "ForMaskedLM", how, **SIZES, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return m, text(m)


def opt(how):
    m = hugging("OPT", implementation=how, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16,
                max_position_embeddings=16, dropout=0)  # fmt: skip
    return m, text(m)


def bloom(how):
    m = hugging("Bloom", implementation=how, hidden_size=16, n_layer=2, n_head=2)
    return m, text(m)


def xlnet(how):
    m = hugging("XLNet", "LMHeadModel", how, d_model=16, n_layer=2, n_head=2, d_inner=24, dropout=0)
    return m, text(m)


def t5(how):
    m = hugging(
        "T5", "ForConditionalGeneration", how, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0
    )
    return m, seq2seq(m)


def neox(how):
    m = hugging("GPTNeoX", implementation=how, **SIZES)
    return m, text(m)


def vit(how):
    m = hugging("ViT", "ForImageClassification", how, **{**SIZES, "image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.0,
                                                         "attention_probs_dropout_prob": 0.0})  # fmt: skip
    return m, lambda tokens: m(pixel_values=tokens[:, :3, None, None] * torch.linspace(-1, 1, 64).view(8, 8)).logits


def phi(how):
    m = hugging("Phi", implementation=how, **SIZES, resid_pdrop=0, embd_pdrop=0)
    return m, text(m)


def mpnet(how):
    m = hugging("MPNet", "ForMaskedLM", how, **SIZES, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return m, text(m)


class Torchs(nn.Module):
    def __init__(self, batch_first, norm_first):
        super().__init__()
        self.embedding = nn.Embedding(V, 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=batch_first, norm_first=norm_first)
            self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
        self.batch_first = batch_first

    def forward(self, tokens, padding_mask):
        x = self.embedding(tokens)
        return self.encoder(x if self.batch_first else x.transpose(0, 1), src_key_padding_mask=~padding_mask)


def torch_post(how):
    m = Torchs(True, False)
    return m, lambda tokens: m(tokens, MASK)


def torch_pre(how):
    m = Torchs(False, True)
    return m, lambda tokens: m(tokens, MASK)


def torch_whole(how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = nn.Transformer(16, 2, 2, 2, 24, 0.0)
    table = torch.randn(V, 16)
    return m, lambda tokens: m(table[tokens].transpose(0, 1), table[tokens.flip(0)].transpose(0, 1), src_key_padding_mask=~MASK,
                               tgt_key_padding_mask=~MASK, memory_key_padding_mask=~MASK)  # fmt: skip


USUAL = [gpt2, llama, qwen3, gemma2, bert, opt, bloom, xlnet, t5, torch_post, torch_pre, torch_whole, neox, vit, phi]
NIGHTLY = [mpnet]


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
            loss = call(tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        expected = {
            "param_grad": {},
            "update_ratio": {},
            "gain_rms": {},
            "gain_max": {},
            "gain_drift": {},
            "gain_grad": {},
        }
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
