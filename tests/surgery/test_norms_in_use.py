"""A norm's facts hold for what it is really called with: at any width, over any axes, with what it is given besides."""

import pytest
import torch
import torch.nn.functional as F
import zoo
from torch import nn

import normlab
from normlab import surgery

WIDTH = 256


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return self.g * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


class ByFormula(nn.Module):
    """Parameters as given; nothing tells a width, unless an attribute does."""

    def __init__(self, formula, parameters=None, **attributes):
        super().__init__()
        for name, value in (parameters or {}).items():
            self.register_parameter(name, nn.Parameter(value))
        self.__dict__.update(attributes)
        self.formula = formula

    def forward(self, x):
        return self.formula(self, x)


def mean_square(x):
    return x.pow(2).mean(-1, keepdim=True)


def centered(x):
    return x - x.mean(-1, keepdim=True)


NUMBER = {"g": torch.full((1,), 0.7)}
WIDTHLESS = {
    "x / max(|x|, eps), g": (Scale(), "sum", 1e-5, "clamp"),
    "F.normalize": (ByFormula(lambda m, x: F.normalize(x, dim=-1)), "sum", 1e-12, "clamp"),
    "F.normalize of axis 1": (ByFormula(lambda m, x: F.normalize(x)), "sum", 1e-12, "clamp"),
    "sum + eps": (ByFormula(lambda m, x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)), "sum", 1e-6, "root"),
    "|x| + eps": (ByFormula(lambda m, x: m.g * x / (x.norm(dim=-1, keepdim=True) + 1e-4), NUMBER), "sum", 1e-4, "outside"),
    "unbiased deviation": (ByFormula(lambda m, x: centered(x) / (x.std(-1, keepdim=True) + 1e-4)), "unbiased", 1e-4, "outside"),
    "unbiased variance": (ByFormula(lambda m, x: centered(x) / (x.var(-1, keepdim=True) + 1e-3).sqrt()), "unbiased", 1e-3, "root"),
    "mean square": (ByFormula(lambda m, x: x * torch.rsqrt(mean_square(x) + 1e-5)), "mean", 1e-5, "root"),
    "mean square, g": (ByFormula(lambda m, x: m.g * x * torch.rsqrt(mean_square(x) + 1e-5), NUMBER), "mean", 1e-5, "root"),
    "a number that is no width": (
        ByFormula(lambda m, x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6), heads=8), "sum", 1e-6, "root",
    ),
    "times the root of a width": (ByFormula(lambda m, x: F.normalize(x, dim=-1) * m.scale, scale=WIDTH**0.5), "sum", 1e-12, "clamp"),
}  # fmt: skip


@pytest.mark.parametrize("width", [3, 11, WIDTH])
@pytest.mark.parametrize("case", WIDTHLESS)
def test_without_a_width_the_formula_holds_at_any(case, width):
    module, square, eps, form = WIDTHLESS[case]
    (site,) = surgery.find_norms(nn.Sequential(module))
    assert (site.square, site.eps, site.eps_form) == (square, eps, form)
    assert zoo.off(site, torch.randn(4, width)) < 1e-5
    assert zoo.off(site, 1e-3 * torch.randn(4, width)) < 1e-5  # where eps is felt
    at = site.at(width)
    assert at.square == "mean" and zoo.off(at, 1e-3 * torch.randn(4, width)) < 1e-5


def test_what_fits_one_width_and_no_other_is_unknown():
    module = ByFormula(lambda m, x: x * torch.rsqrt(mean_square(x) + 1e-6) * (11 / x.shape[-1]) ** 0.25)
    found = surgery.survey(nn.Sequential(module))
    assert not found.norms


def watched(net, x, tmp_path):
    """One recorded step; (run, coverage, what the norm called n was given and its gradient)."""
    kept, optimizer = {}, torch.optim.SGD(net.parameters(), lr=0.0)

    def keep(module, args, output):
        kept["given"] = [a.detach() for a in args]
        output.register_hook(lambda g: kept.__setitem__("grad", g.detach()))

    handle = net.n.register_forward_hook(keep)
    with normlab.watch(
        net, optimizer=optimizer, out=tmp_path / "r", preset="full", every=1, max_overhead=None
    ) as watch:
        loss = F.cross_entropy(net(x), torch.arange(len(x)) % 3)
        loss.backward()
        optimizer.step()
        watch.step(loss=loss)
        covered = watch.coverage()
    handle.remove()
    return normlab.Run(tmp_path / "r"), covered, kept


def last(run, quantity):
    return run.series(quantity)["n"].values[-1]


class Around(nn.Module):
    def __init__(self, norm, size=1.0):
        super().__init__()
        self.i, self.n, self.o = nn.Linear(5, WIDTH), norm, nn.Linear(WIDTH, 3)
        self.size = size

    def forward(self, x):
        return self.o(self.n(self.size * self.i(x)))


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-7])  # above eps, around it, below
@pytest.mark.parametrize("case", [c for c in WIDTHLESS if c != "times the root of a width"])
def test_the_watch_measures_at_the_width_it_sees(case, size, tmp_path):
    torch.manual_seed(0)
    module, *_ = WIDTHLESS[case]
    net = Around(module, size)
    run, _, kept = watched(net, torch.randn(16, 5), tmp_path)
    (site,) = [s for s in surgery.find_norms(net) if s.name == "n"]
    x, at = kept["given"][0], site.at(WIDTH)
    if site.weight is not None:
        assert last(run, "gain_rms") == pytest.approx(at.gain_scale * site.weight.item(), rel=1e-5)
    plain = zoo.plain(at, x.double())
    gain = at.gain_scale * (1.0 if site.weight is None else site.weight.item())
    inner = gain * kept["grad"].double()
    assert last(run, "var_grad_norm") == pytest.approx(float((inner * plain).mean(-1).norm()), rel=1e-3, abs=1e-12)
    assert last(run, "within_two_plain") == pytest.approx(float((plain.abs() <= 2).double().mean()), abs=1e-3)
    # what flows through the statistics is what autograd has beyond a norm whose statistics are constants
    z = x.double().requires_grad_()
    (whole,) = torch.autograd.grad((zoo.plain(at, z) * inner).sum(), z)
    mean = z.detach().mean(-1, keepdim=True) if site.kind == "layer" else torch.zeros(())
    direct = inner * zoo.plain(at, z.detach()) / (z.detach() - mean)
    through_mean = -direct.mean(-1, keepdim=True) if site.kind == "layer" else torch.zeros(())
    through_var = whole - direct - through_mean
    wanted = float(through_var.norm() / direct.norm())
    assert last(run, "grad_through_var") == pytest.approx(wanted, rel=2e-3, abs=1e-6)


def test_a_norm_that_was_never_called_has_no_gain_at_any_width(tmp_path):
    net = Around(Scale())
    net.idle = Scale()
    run, _, _ = watched(net, torch.randn(4, 5), tmp_path)
    assert set(run.series("gain_rms")) == {"n"}


class GatedByAnotherName(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x, g=None):
        y = F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)
        return y if g is None else y * F.silu(g)


class Caller(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.i, self.n, self.o, self.call = nn.Linear(5, 48), GatedByAnotherName(24), nn.Linear(24, 3), call

    def forward(self, x):
        return self.o(self.call(self.n, *self.i(x).chunk(2, -1)))


CALLS = {"by place": lambda n, a, b: n(a, b), "by name": lambda n, a, b: n(a, g=b)}


@pytest.mark.parametrize("call", CALLS)
def test_a_norm_called_with_more_than_its_input_is_not_measured_as_one(call, tmp_path):
    net = Caller(CALLS[call])
    run, covered, _ = watched(net, torch.randn(64, 5), tmp_path)
    for quantity in ("grad_through_var", "within_two_plain", "length", "eps_share", "gain_rms", "var_grad_norm"):
        with pytest.raises(KeyError):
            last(run, quantity)
    assert "called with more than its input" in covered
    said = run.info["structure"]
    assert not said["norms"] and [u["name"] for u in said["unknown"]] == ["n"]
    assert "called with more than its input" in said["unknown"][0]["reason"]


def test_the_same_norm_without_its_option_is_measured(tmp_path):
    net = Caller(lambda n, a, b: n(a))
    run, covered, _ = watched(net, torch.randn(64, 5), tmp_path)
    assert last(run, "gain_rms") > 0 and "1 of 1 norms fired" in covered
    assert [n["name"] for n in run.info["structure"]["norms"]] == ["n"]


@pytest.mark.parametrize("capture", ["operators", "graph"])
@pytest.mark.parametrize("call", CALLS)
def test_inspect_says_so_too(call, capture):
    found = normlab.inspect(Caller(CALLS[call]), torch.randn(4, 5), capture=capture)
    assert not found.norms and "called with more than its input" in found.unknown[0].reason
    alone = normlab.inspect(Caller(lambda n, a, b: n(a)), torch.randn(4, 5), capture=capture)
    assert [n.name for n in alone.norms] == ["n"] and not alone.unknown


class GroupNorm1(nn.GroupNorm):
    """timm's."""

    def __init__(self, channels):
        super().__init__(1, channels)

    def forward(self, x):
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class WholeSample(nn.Module):
    """Statistics over all axes but the first; features in axis 1, or in the last."""

    def __init__(self, channels, axis, mean=True, eps=1e-8):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.rand(channels))
        self.axis, self.mean, self.eps = axis, mean, eps

    def forward(self, x):
        over = tuple(range(1, x.dim()))
        shape = [-1 if a == self.axis % x.dim() else 1 for a in range(x.dim())]
        x = x - x.mean(over, keepdim=True) if self.mean else x
        return x * torch.rsqrt(x.pow(2).mean(over, keepdim=True) + self.eps) * self.g.view(shape) + self.b.view(shape)


@pytest.mark.parametrize("width", [2, 3, 5, 7, 12])
@pytest.mark.parametrize(("make", "axis", "eps"), [
    (GroupNorm1, 1, 1e-5), (lambda c: WholeSample(c, 1), 1, 1e-8), (lambda c: WholeSample(c, -1), -1, 1e-8),
], ids=["GroupNorm1", "features first", "features last"])  # fmt: skip
def test_a_norm_of_whole_samples_is_a_group_norm_of_one_group(make, axis, eps, width):
    module = make(width)
    (site,) = surgery.find_norms(nn.Sequential(module))
    assert (site.kind, site.groups, site.channel_dim, site.eps) == ("group", 1, axis, eps)
    x = torch.randn(2, width, 5, 4) * torch.rand(2, 1, 5, 4) * 3
    assert zoo.off(site, x if axis == 1 else x.movedim(1, -1)) < 1e-5


@pytest.mark.parametrize("width", [2, 3, 5, 7, 12])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_root_mean_square_of_whole_samples_is_unknown(axis, width):
    found = surgery.survey(nn.Sequential(WholeSample(width, axis, mean=False)))
    assert not found.norms
    assert "all axes but the first" in found.unknown[0].reason and found.unknown[0].nature == "norm"


def test_an_answer_on_two_axes_does_not_stand_for_those_on_more():
    """On two axes an RMSNorm, on more none."""

    class TwofoldNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.g = nn.Parameter(torch.ones(12))

        def forward(self, x):
            over = (0, -1) if x.dim() > 2 else (-1,)
            return self.g * x * torch.rsqrt(x.pow(2).mean(over, keepdim=True) + 1e-6)

    found = surgery.survey(nn.Sequential(TwofoldNorm()))
    assert not found.norms and found.unknown[0].reason


def test_sync_batch_norm_is_a_batch_norm():
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12)))
    (site,) = surgery.find_norms(net)
    assert (site.kind, site.channel_dim, site.eps, site.gain_name, site.bias_name) == (
        "batch",
        1,
        1e-5,
        "weight",
        "bias",
    )
    net[1].running_mean.uniform_(), net[1].running_var.uniform_(0.5, 2.0)
    assert zoo.off(site, torch.randn(4, 12, 5, 5)) < 1e-5


def test_a_reason_says_in_which_mode_it_was_asked():
    """A BatchNorm of others is asked in evaluation, where it uses what it holds: that is not to say that it never normalizes."""

    class OwnBatchNorm(nn.BatchNorm2d):
        def forward(self, x):
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps
            )

    (unknown,) = surgery.survey(nn.Sequential(OwnBatchNorm(12))).unknown
    assert "evaluation" in unknown.reason and "normalizes nothing" not in unknown.reason
