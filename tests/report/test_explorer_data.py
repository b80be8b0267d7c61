"""What ships with the explorer is what the package computes: sets of cells, scaled columns, drawings of placements."""

from __future__ import annotations

import json
import math
import runpy
import statistics
from pathlib import Path

import pytest
import torch
from page_script import MISSING, NODE, in_node

import normlab
from normlab.functional import statistic_labels
from normlab.kernels import reference
from normlab.report import explore

ROOT = Path(__file__).resolve().parents[2]
DATA = explore.page_data()
SETS = DATA["sets"]


def labels_of(kind: str, shape: tuple[int, ...], name: str) -> torch.Tensor:
    return torch.tensor(SETS[kind]["-".join(map(str, shape))][name]["labels"]).reshape(shape)


CASES = [
    (kind, tuple(int(n) for n in shape.split("-")), name)
    for kind in SETS
    for shape in SETS[kind]
    for name in SETS[kind][shape]
]


@pytest.mark.parametrize("kind", SETS)
def test_sets_are_those_of_the_package(kind):
    """Every norm of every shape, by the function that users have."""
    for _, shape, name in (case for case in CASES if case[0] == kind):
        channel, whole = (1, 3) if kind == "images" else (-1, 2)
        norm, _, groups = name.partition("-")
        how = {"last": ("layer", 1), "layer": ("layer", 1 if kind == "marks" else whole), "rms": ("rms", whole if kind == "images" else 1)}.get(norm, (norm, 1))  # fmt: skip
        expected = statistic_labels(
            how[0], shape, channel_dim=channel, num_groups=int(groups or 1), normalized_dims=how[1]
        )
        assert torch.equal(labels_of(kind, shape, name), expected), (kind, shape, name)


NORMALIZED = {
    "batch": lambda x, c: reference.column_norm(x, None, None, None, eps=1e-3, groups=x.shape[c], pooled=True, channel_dim=c)[0],
    "instance": lambda x, c: reference.column_norm(x, None, None, None, eps=1e-3, groups=x.shape[c], pooled=False, channel_dim=c)[0],
    "group-2": lambda x, c: reference.column_norm(x, None, None, None, eps=1e-3, groups=2, pooled=False, channel_dim=c)[0],
    "last": lambda x, c: reference.row_norm(x, None, None, None, mode="layer", eps=1e-3, partial=x.shape[-1]),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALIZED)
@pytest.mark.parametrize(("kind", "shape", "channel"), [("images", (2, 4, 2, 3), 1), ("text", (2, 3, 4), -1)])
def test_cells_share_a_set_where_one_moves_the_others(name, kind, shape, channel):
    """Independently of labels: y of a cell depends on x of exactly the cells of its set."""
    x = torch.randn(shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(
        lambda v: NORMALIZED[name](v.reshape(shape), channel).flatten(), x.flatten()
    )
    labels = labels_of(kind, shape, name).flatten()
    assert torch.equal(jacobian.abs() > 1e-12, labels[:, None] == labels[None, :])


def test_what_averaging_leaves():
    """One cell for each label, in the order of the labels."""
    for kind, shape, name in CASES:
        left, labels = SETS[kind]["-".join(map(str, shape))][name]["left"], labels_of(kind, shape, name)
        assert math.prod(left) == int(labels.max()) + 1
        grid = torch.arange(math.prod(left)).reshape(left)
        for axis, (size, kept) in enumerate(zip(shape, left, strict=True)):
            grid = grid.repeat_interleave(size // kept, dim=axis)
        assert torch.equal(grid, labels), (kind, shape, name)
    assert SETS["images"]["3-4-3-4"]["batch"]["left"] == [1, 4, 1, 1], "the average book: a character on each page"


def test_the_columns_are_scikit_learns_and_scaling_keeps_their_shape():
    sklearn = pytest.importorskip("sklearn.datasets")
    bunch, scaling = sklearn.load_breast_cancer(), DATA["scaling"]
    column = torch.tensor(bunch.data[:, list(bunch.feature_names).index(scaling["column"])])
    assert scaling["values"] == [round(v, 1) for v in column.tolist()]
    for name, scaled in {
        "raw": column,
        "minmax": (column - column.min()) / (column.max() - column.min()),
        "standard": (column - column.mean()) / column.std(correction=0),
    }.items():
        found = scaling["histograms"][name]
        z = (scaled - scaled.mean()) / scaled.std(correction=0)
        assert found["skew"] == pytest.approx(float((z**3).mean())) and found["kurtosis"] == pytest.approx(float((z**4).mean() - 3))  # fmt: skip
        assert sum(found["counts"]) == len(column) and (found["low"], found["high"]) == pytest.approx((float(scaled.min()), float(scaled.max())))  # fmt: skip
    assert scaling["histograms"]["standard"]["mean"] == 0 and scaling["histograms"]["standard"]["deviation"] == pytest.approx(1)  # fmt: skip
    ends = {name: run["excess"][-1] for name, run in scaling["descent"].items()}
    assert ends["standard"] < 1e-3 * ends["raw"], "the point of the page"


def test_the_measurements_name_their_machine_and_hold_every_placement():
    depth = DATA["depth"]
    assert list(depth["placements"]) == list(normlab.PLACEMENTS)
    assert depth["machine"] and depth["torch"] and depth["date"] >= "2026-11-17" and depth["seeds"] >= 3
    for name, facts in normlab.PLACEMENTS.items():
        found = depth["placements"][name]
        assert (found["formula"], found["paper"], found["year"]) == (facts.formula, facts.paper, facts.year)
        for quantity in ("stream_rms", "stream_grad"):
            for when in found[quantity]:
                assert len(when) == depth["layers"] and all(0 < low <= middle <= high for middle, low, high in when)
    post, pre = (depth["placements"][name]["stream_rms"][0] for name in ("post", "pre"))
    assert post[-1][0] == pytest.approx(1, abs=0.05) and pre[-1][0] > 1.5 * pre[0][0], "one normed, one growing"


def test_the_command_writes_what_ships():
    """What is the same on every machine is computed once more; for the rest the names it needs are there."""
    command = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "explorer_data.py"), run_name="command")
    assert command["sets"]() == SETS
    assert {"cpu", "torch"} <= set(command["machine"].description())
    assert callable(command["make_model"]) and callable(command["task_of"])


# ---- drawings --------------------------------------------------------------------------------------------------------

SIMPLE = ("none", "post", "pre", "deepnorm", "sandwich", "layernorm-scaling", "reordered", "admin", "rezero")


@pytest.mark.skipif(NODE is None, reason=MISSING)
def test_drawings_compute_what_the_classes_compute():
    """A drawing read as a formula gives the class's result; ends aside, which stand outside of a residual."""
    (drawings,) = in_node([{"ask": "drawings"}])
    assert list(drawings) == list(normlab.PLACEMENTS)
    for name, facts in normlab.PLACEMENTS.items():
        drawing = drawings[name]
        assert bool(drawing.get("end")) == (facts.ends.__name__ in ("FinalNorm", "NormedEnds")), name
        assert bool(drawing.get("start")) == (facts.ends.__name__ == "NormedEnds"), name
        assert bool(drawing.get("second")) == (facts.ends.__name__ == "DualEnds"), name
    torch.manual_seed(1)
    sublayer = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()).double()
    x = 3 * torch.randn(5, 6, dtype=torch.float64)
    slot = normlab.placements.Slot(num_layers=9, layer=4, width=6)
    for name in SIMPLE:
        place = normlab.PLACEMENTS[name].placement(lambda: normlab.LayerNorm(6).double(), slot).double()
        norm = torch.nn.LayerNorm(6).double()
        (part,) = drawings[name]["parts"]
        inner = norm(x) if part.get("before") else x
        if part.get("scale"):
            inner = inner / math.sqrt(5)  # the layer is counted from one
        branch = sublayer(inner)
        branch = norm(branch) if part.get("after") else branch
        if part.get("gate"):
            branch = 0 * branch  # ReZero starts there
        weight = {
            "deepnorm": normlab.placements.deepnorm_scales(9)[0],
            "admin": normlab.placements.admin_scale(slot.sublayers),
        }
        assert bool(part.get("weight")) == (name in weight)
        y = weight.get(name, 1.0) * x + branch
        y = norm(y) if part.get("post") else y
        torch.testing.assert_close(place(x, sublayer), y, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_data_is_small():
    folder = Path(explore.__file__).parent / "web" / "data"
    assert sum(f.stat().st_size for f in folder.glob("*.json")) < 300_000
    assert all(json.loads(f.read_text()) for f in folder.glob("*.json"))


def test_the_flow_of_statistics_is_what_training_gives(tmp_path):
    """Shapes and order of the shipped numbers, and the first recorded step computed again: it depends on no rate and no schedule."""
    made = runpy.run_path(str(ROOT / "benchmarks" / "explorer_data.py"), run_name="made")
    flow = DATA["fluctuation"]
    assert flow["recorded"] == made["steps_of"](made["FLOW_STEPS"], made["FLOW_EVERY"]) and list(flow["arms"]) == list(
        made["ARMS"]
    )
    for arm in flow["arms"].values():
        assert set(arm) == {*made["FLOWS"], "mean_grad_outlier", "var_grad_outlier"}
        for values in arm.values():
            assert len(values) == len(flow["recorded"]) and all(
                0 < low <= middle <= high for middle, low, high in values
            )
    base = normlab.Experiment(norm="batch", placement="pre", steps=1, lr=1e-3, batch_size=16, watch="none", seed=1,
                              model={"num_layers": 4, "dim": 48, "num_heads": 4})  # fmt: skip
    for name in ("counted", "images"):
        run, _ = made["trained"](base.changed(**made["ARMS"][name]), tmp_path / name, preset="full", every=1)
        for quantity in ("mean_grad_norm", "var_grad_norm", "batch_var_distance"):
            value = statistics.median(s.values[0] for s in run.series(quantity).values())
            _, low, high = flow["arms"][name][quantity][0]
            assert low * 0.99 <= value <= high * 1.01, (name, quantity)
