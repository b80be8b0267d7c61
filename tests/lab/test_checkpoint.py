"""A checkpoint brings everything back bit for bit, or is refused with the reason and changes nothing."""

from __future__ import annotations

import json
import random

import pytest
import torch
from torch import nn

import normlab
from normlab.lab import checkpoint
from normlab.lab.checkpoint import FILE, WEIGHTS, CheckpointUnreadable
from normlab.models import CAUSAL_FORMS

safetensors = pytest.importorskip("safetensors.torch")
safe_open = pytest.importorskip("safetensors").safe_open


def made(seed=0, **settings):
    torch.manual_seed(seed)
    model = normlab.build(**{"architecture": "decoder", "dim": 16, "num_layers": 2, "num_heads": 2, "ffn_dim": 24,
                             "vocab_size": 31, "max_length": 13, "dropout": 0.1, **settings})  # fmt: skip
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def step(model, optimizer, number=1):
    draw = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 31, (3, 13), generator=draw)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def accept(progress):
    return None


def saved(folder, steps=3, progress=None, **settings):
    model, optimizer = made(**settings)
    for number in range(steps):
        step(model, optimizer, number)
    checkpoint.save(folder, model, optimizer, progress or {"step": steps})
    return model, optimizer


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("norm", ["layer", "batch", "power"])
def test_a_loaded_state_goes_on_bit_for_bit(tmp_path, norm, tied):
    options = {"causal_statistics": next(iter(CAUSAL_FORMS[norm]))} if norm in CAUSAL_FORMS else {}
    progress = {"step": 3, "recent": [0.1, 1 / 3], "curve": [[1, 2.5]], "words": "ü"}
    model, optimizer = saved(tmp_path, progress=progress, norm=norm, tie_embeddings=tied, **options)
    on = [step(model, optimizer, n) for n in range(3, 8)]
    other, its_optimizer = made(seed=99, norm=norm, tie_embeddings=tied, **options)
    torch.manual_seed(5)
    assert checkpoint.load(tmp_path, other, its_optimizer, accept) == (progress, {})
    assert [step(other, its_optimizer, n) for n in range(3, 8)] == on
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert not (tmp_path / (FILE + ".partial")).exists()


def test_nothing_in_the_file_is_pickled_and_dots_in_names_do_not_mix(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ParameterDict({"b": nn.Parameter(torch.randn(3)), "exp_avg": nn.Parameter(torch.randn(3))})
            self.b = nn.Parameter(torch.randn(3))

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for factor in (1.0, 2.0):
        (model.a["b"].sum() + factor * model.a["exp_avg"].square().sum() + model.b.prod()).backward()
        optimizer.step()
    checkpoint.save(tmp_path, model, optimizer, {})
    with open(tmp_path / FILE, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    assert header["__metadata__"]["format"] == checkpoint.FORMAT
    other = Model()
    its_optimizer = torch.optim.AdamW(other.parameters(), lr=0.1)
    checkpoint.load(tmp_path, other, its_optimizer, accept)
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert optimizer.state[p].keys() == its_optimizer.state[q].keys()
        for key, value in optimizer.state[p].items():
            assert torch.equal(value, its_optimizer.state[q][key]), (name, key)


def assert_refused(folder, message, refusal=accept, **settings):
    """Loading fails with these words and leaves model, optimizer and random numbers alone."""
    model, optimizer = made(seed=7, **settings)
    step(model, optimizer)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
    state = torch.get_rng_state()
    with pytest.raises(CheckpointUnreadable, match=message):
        checkpoint.load(folder, model, optimizer, refusal)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(torch.equal(m, optimizer.state[p]["exp_avg"]) for m, p in zip(moments, model.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, 4000, -1])
def test_a_file_cut_short_is_refused(tmp_path, keep):
    saved(tmp_path, steps=1)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:keep])
    assert_refused(tmp_path, "cannot be read")


def test_garbage_is_refused(tmp_path):
    for content in (b"\0" * 5000, random.Random(1).randbytes(5000), b"{}" * 400):
        (tmp_path / FILE).write_bytes(content)
        assert_refused(tmp_path, "cannot be read")
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert_refused(tmp_path, "cannot be read")


def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path):
    saved(tmp_path, steps=1)
    whole = (tmp_path / FILE).read_bytes()
    draw = random.Random(2)
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in [start, len(whole) - 1, *(draw.randrange(start, len(whole)) for _ in range(8))]:
        (tmp_path / FILE).write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        assert_refused(tmp_path, "damaged or changed")
    for old, new in ((b"step", b"stop"), (b'.exp_avg"', b'.exp_avh"'), (b"checksum", b"checksun")):
        assert old in whole[:start]
        (tmp_path / FILE).write_bytes(whole[:start].replace(old, new, 1) + whole[start:])
        assert_refused(tmp_path, "damaged or changed|cannot be read")


def test_another_format_model_or_purpose_is_refused(tmp_path):
    model, _ = saved(tmp_path, steps=1)
    assert_refused(tmp_path, r"does not fit the model: .*missing, unknown or of another shape", ffn_dim=32)
    assert_refused(tmp_path, r"does not fit the model: .*layers.2", num_layers=3)
    assert_refused(tmp_path, r"does not fit the model, which has no model.stack.ends.norm.bias", final_norm=False)
    assert_refused(
        tmp_path, r"does not fit: step 1 is not 4", refusal=lambda progress: f"step {progress['step']} is not 4"
    )
    safetensors.save_file(dict(model.state_dict()), tmp_path / FILE)
    assert_refused(tmp_path, r"has format None, this version reads 'normlab.checkpoint/1'")


def rewritten(folder, change):
    """The checkpoint with other tensors and a sum that is right."""
    with safe_open(folder / FILE, framework="pt") as file:
        progress, tensors = json.loads(file.metadata()["facts"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (folder / FILE).unlink()
    checkpoint._write(
        folder / FILE, {n: t for n, old in tensors.items() if (t := change(n, old)) is not None}, progress
    )


def of_state(key, change):
    """A change of what the optimizer keeps under this name."""
    return lambda name, t: change(t) if name.startswith("optimizer.") and name.endswith("." + key) else t


UNFIT = {
    "one number in the place of many": (of_state("exp_avg", lambda t: torch.zeros(1)), "optimizer: .*exp_avg"),
    "many in the place of one": (of_state("step", lambda t: torch.zeros(3)), "optimizer: .*step"),
    "turned": (of_state("exp_avg_sq", lambda t: t.t().contiguous() if t.dim() == 2 else t[None]), "optimizer: .*exp_avg_sq"),
    "float64 moments": (of_state("exp_avg", lambda t: t.double()), "optimizer: .*exp_avg"),
    "whole numbers": (of_state("exp_avg_sq", lambda t: t.long()), "optimizer: .*exp_avg_sq"),
    "no moments": (of_state("exp_avg", lambda t: None), "optimizer: .*exp_avg"),
    "float64 weights": (lambda n, t: t.double() if n.startswith("model.") else t, "model: .*weight"),
    "random state": (lambda n, t: torch.full_like(t, 255) if n == "random" else t, "random"),
    "random numbers": (lambda n, t: t.float() if n == "random" else t, "random"),
    "no random state": (lambda n, t: None if n == "random" else t, "random"),
}  # fmt: skip


@pytest.mark.parametrize("fault", UNFIT)
def test_contents_that_do_not_fit_are_refused_though_their_sum_is_right(tmp_path, fault):
    """Fused AdamW reads as many moments as its parameter has numbers, whatever is there: a segmentation fault."""
    saved(tmp_path, steps=1)
    change, message = UNFIT[fault]
    rewritten(tmp_path, change)
    assert_refused(tmp_path, f"does not fit the {message}")


@pytest.mark.parametrize(("momentum", "fits"), [(0.9, True), (0.0, False)])
def test_the_optimizer_itself_says_what_it_keeps(tmp_path, momentum, fits):
    model, _ = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    checkpoint.save(tmp_path, model, optimizer, {"step": 1})
    other, _ = made(seed=1)
    its_optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=momentum)
    before = {name: t.clone() for name, t in other.state_dict().items()}
    if fits:
        checkpoint.load(tmp_path, other, its_optimizer, accept)
        state = torch.get_rng_state()
        on = step(model, optimizer, 2), step(model, optimizer, 3)
        torch.set_rng_state(state)
        assert (step(other, its_optimizer, 2), step(other, its_optimizer, 3)) == on
    else:
        with pytest.raises(CheckpointUnreadable, match=r"does not fit the optimizer: .*momentum_buffer"):
            checkpoint.load(tmp_path, other, its_optimizer, accept)
        assert all(torch.equal(before[name], t) for name, t in other.state_dict().items())


def test_a_failed_write_keeps_the_last_file_and_leaves_no_half_one(tmp_path, monkeypatch):
    saved(tmp_path, steps=1)
    before = (tmp_path / FILE).read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        saved(tmp_path, steps=2)
    assert (tmp_path / FILE).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_weights_alone_load_into_a_fresh_model(tmp_path):
    for tied in (False, True):
        model, optimizer = made(tie_embeddings=tied)
        step(model, optimizer)
        path = checkpoint.save_weights(tmp_path, model, {"step": 1})
        assert path == tmp_path / WEIGHTS
        held = safetensors.load_file(path)
        other, _ = made(seed=3, tie_embeddings=tied)
        missing, unexpected = other.load_state_dict(held, strict=False)
        assert not unexpected and bool(missing) == tied
        assert all(torch.equal(t, other.state_dict()[name]) for name, t in model.state_dict().items())


def test_parts_of_one_tensor_can_be_saved(tmp_path):
    class Model(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5) * scale)
            table = torch.randn(7) * scale
            self.register_buffer("table", table)
            self.register_buffer("head", table[:4])
            self.register_buffer("turned", (torch.randn(3, 2) * scale).T)
            self.register_buffer("nothing", torch.empty(0))

    model, other = Model(1.0), Model(0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint.save(tmp_path, model, optimizer, {}, {"[more, 1]": torch.arange(3)})
    _, more = checkpoint.load(tmp_path, other, torch.optim.AdamW(other.parameters()), accept)
    assert more.keys() == {"[more, 1]"} and more["[more, 1]"].tolist() == [0, 1, 2]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_the_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"normlab\[lab\]"):
        saved(tmp_path, steps=0)
