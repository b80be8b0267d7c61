"""More than loss: metrics by hand, ranked in their own direction, at the rates that the loss chose."""

from __future__ import annotations

import pytest
from planted import answer, cells_of, check, sweep_of, trials_of
from scipy import stats

from normlab.answer import METRICS
from normlab.answer.phrases import mean_of
from normlab.cli.answers import show_answer


def planted(**how):
    """Post has the higher loss and the higher accuracy, and is faster."""
    grid = sweep_of(norms=("layer",), seeds=4)
    trials = trials_of(grid, lambda n, p, lr: 2.3 + 0.2 * (p == "post") + 0.3 * (lr != 1e-3), noise=0.01, seed=5)
    for t in trials:
        post = t["axes"]["placement"] == "post"
        t |= {"accuracy": 0.3 + 0.05 * post + 0.001 * t["seed"] - 0.1 * (t["lr"] != 1e-3), "train_loss": t["loss"] - 0.04 - 0.02 * post,
              "steps": 200, "tokens": 200 * 1024.0, "training_seconds": 4.0 - 2.0 * post, "tokens_per_second": 5e4 + 5e4 * post}  # fmt: skip
    return grid, trials, check_metric(answer(grid, trials, **how))


def check_metric(found):
    if found.metric == "loss":
        return check(found)
    for en, zh in zip(found.verdict.en, found.verdict.zh, strict=True):
        assert en.endswith(".") and zh.endswith("。")
    return found


def test_figures_are_means_at_the_best_rate_with_students_interval():
    _, trials, found = planted()
    cell = cells_of(found)["layer/post"]
    values = [t["accuracy"] for t in trials if t["cell"] == "layer/post" and t["lr"] == 1e-3]
    low, high = stats.t.interval(0.95, 3, stats.tmean(values), stats.sem(values))
    own = cell.figures["accuracy"]
    assert (own.mean, own.low, own.high, own.n) == (
        pytest.approx(stats.tmean(values)),
        pytest.approx(low),
        pytest.approx(high),
        4,
    )
    assert cell.figures["gap"].mean == pytest.approx(0.06) and set(cell.figures) == set(METRICS)
    assert cell.figures["peak_memory"].mean == pytest.approx((7 + 1.5) / 2**20)


def test_the_common_target_is_reached_by_every_compared_trial():
    _, trials, found = planted()
    best = [t for t in trials if t["lr"] == 1e-3]
    target = max(t["loss"] for t in best)
    assert found.common_target == target
    for cell in found.cells:
        curves = [t["curve"] for t in best if t["cell"] == cell.name]
        steps = [100 + 100 * (c[0][1] - target) / (c[0][1] - c[1][1]) for c in curves]
        assert cell.figures["steps_to_target"].mean == pytest.approx(sum(steps) / 4)
        per = (4.0 if cell.name == "layer/pre" else 2.0) / 200
        assert cell.figures["seconds_to_target"].mean == pytest.approx(per * sum(steps) / 4)
        assert cell.figures["tokens_to_target"].mean == pytest.approx(1024 * sum(steps) / 4)


def test_another_metric_ranks_in_its_own_direction():
    _, _, found = planted(metric="accuracy")
    assert [c.name for c in found.cells] == ["layer/post", "layer/pre"] and found.best == "layer/post"
    best = found.cells[0]
    assert best.best_lr == 1e-3 and best.difference.mean == pytest.approx(0.05)
    said = " ".join(found.verdict.en)
    assert (
        said.startswith("Ranked by held-out accuracy")
        and f"Use layer/post: {mean_of(best.figures['accuracy'])} at rate 0.001" in said
    )
    assert (
        "layer/post is higher than layer/pre, the baseline, by 0.05" in said
        and "Decidedly worse than layer/post: layer/pre -0.05" in said
    )
    _, _, slow = planted(metric="seconds_to_target")
    assert slow.best == "layer/post" and "s at rate" in " ".join(slow.verdict.en)
    assert planted()[2].best == "layer/pre"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("metric", list(METRICS))
def test_every_metric_is_shown(capsys, metric, lang):
    _, _, found = planted(metric=metric)
    show_answer(found, lang)
    out = capsys.readouterr().out
    assert METRICS[metric].title[lang == "zh"] in out and "layer/post" in out


def test_mistakes_are_named():
    grid = sweep_of()
    with pytest.raises(ValueError, match="Did you mean 'accuracy'"):
        answer(grid, trials_of(grid), metric="acuracy")
    with pytest.raises(ValueError, match="no trial of this sweep has a number for the metric 'accuracy'"):
        answer(grid, trials_of(grid), metric="accuracy")


def test_equality_within_a_margin_is_a_verdict_of_its_own():
    grid = sweep_of(norms=("layer", "rms"), placements=("pre",), seeds=6)
    trials = trials_of(grid, lambda n, p, lr: 2.3 + 0.3 * (lr != 1e-3), noise=0.001)
    narrow, wide = (answer(grid, trials, margin=m) for m in (1e-5, 0.02))
    assert "equal within 0.02" in check(wide).verdict.en[0] and "相差不超过 0.02" in wide.verdict.zh[0]
    assert "not told apart" in check(narrow).verdict.en[0] and not any("Equal to" in s for s in narrow.verdict.en)
