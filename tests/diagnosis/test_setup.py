"""Rules about how a training was set up, on written readings: each fires on its fault and is silent next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from named_findings import only

from normlab import runs
from normlab.diagnosis import diagnose

BLOCKS = ["h.0", "h.1", "h.2", "h.3"]


def write(folder: Path, readings: Any, *, steps: int = 60, **info: Any) -> Path:
    writer = runs.Writer(folder, {"sites": {"norms": {"h.0.ln": "layer", "ln_f": "layer"}, "blocks": BLOCKS}, **info})
    for step in range(1, steps + 1):
        writer.write(step, {"lr": {"model": 1e-3}, **readings(step)})
    writer.close()
    return folder


def flat(step: int) -> dict[str, dict[str, float]]:
    """A loss that stays where it is."""
    return {"loss": {"model": 3.0 + 0.1 * (step % 2)}, "update_ratio": dict.fromkeys(BLOCKS, 2e-3)}


def falling(step: int) -> dict[str, dict[str, float]]:
    return {"loss": {"model": 3.0 - 0.03 * step + 0.1 * (step % 2)}, "update_ratio": dict.fromkeys(BLOCKS, 2e-3)}


def test_weights_that_are_rounded_away(tmp_path):
    def readings(share: float) -> Any:
        return lambda step: {**falling(step), "unmoved_share": dict.fromkeys(BLOCKS, share)}

    found = only(write(tmp_path / "a", readings(0.98), weights={"bfloat16": 100}), "stuck-weights")
    assert found.severity == "critical" and "98%" in found.why and "bfloat16" in found.why
    assert "torch.autocast" in found.try_[0] and "0.001" in found.try_[1]
    assert not diagnose(write(tmp_path / "b", readings(0.7)))


def test_a_rate_that_is_too_low_is_not_told_twice(tmp_path):
    def readings(step: int) -> Any:
        return {"loss": {"model": 3.0 + 0.1 * (step % 2)}, "update_ratio": dict.fromkeys(BLOCKS, 1e-7),
                "unmoved_share": dict.fromkeys(BLOCKS, 0.999)}  # fmt: skip

    assert only(write(tmp_path / "a", readings), "stuck-weights").severity == "critical"


def test_gradients_of_earlier_steps(tmp_path):
    def readings(share: float) -> Any:
        return lambda step: {**falling(step), "stale_gradient": {"model": share}}

    optimizer = {"class": "SGD", "lr": 0.1}
    found = only(write(tmp_path / "a", readings(0.6), optimizer=optimizer), "stale-gradient")
    assert found.severity == "critical" and "60%" in found.why and "SGD.zero_grad()" in found.try_[0]
    assert not diagnose(write(tmp_path / "b", readings(1e-6)))


def test_what_stale_gradients_bring_with_them_is_told_as_theirs(tmp_path):
    def readings(step: int) -> Any:
        return {"loss": {"model": 3.0 if step < 20 else 9.0}, "stale_gradient": {"model": 0.9}}

    assert "loss-divergence" in only(write(tmp_path / "a", readings), "stale-gradient").why


def test_an_eps_that_is_larger_than_the_variance(tmp_path):
    def readings(share: float) -> Any:
        return lambda step: {**falling(step), "eps_share": {"h.0.ln": share, "ln_f": 1e-5}}

    found = only(write(tmp_path / "a", readings(0.99)), "eps-swallows")
    assert found.site == "h.0.ln" and "99.0%" in found.why and "10% of the size" in found.why
    assert "h.0.ln: it is 99 times" in found.try_[0] and "eps=1e-5" in found.try_[0]
    assert not diagnose(write(tmp_path / "b", readings(0.3)))


def test_matrices_that_start_too_large(tmp_path):
    def readings(scale: float, at: int = 1) -> Any:
        return lambda step: {**falling(step), **({"weight_scale": {"h.2": scale, "head": 0.6}} if step == at else {})}

    found = only(write(tmp_path / "a", readings(5.6)), "large-initialization")
    assert found.site == "h.2" and "5.6 times" in found.why and "first loss was 3.07" in found.why
    assert not diagnose(write(tmp_path / "b", readings(1.4)))
    assert not diagnose(write(tmp_path / "c", readings(5.6, at=30)))  # not a start


@pytest.mark.parametrize("language", ("en", "zh"))
def test_an_answer_that_does_not_depend_on_the_input(tmp_path, language):
    def readings(spread: Any, base: Any = flat) -> Any:
        return lambda step: {**base(step), "output_spread": {"model": spread(step)}}

    folder = write(tmp_path / "a", readings(lambda step: 0.05))
    assert "targets" in only(folder, "constant-answer").verdict
    assert [f.rule for f in diagnose(folder, language=language).findings] == ["constant-answer"]
    assert not diagnose(write(tmp_path / "b", readings(lambda step: 0.05, falling)))
    assert not diagnose(write(tmp_path / "c", readings(lambda step: 1.5)))
    assert not diagnose(write(tmp_path / "d", readings(lambda step: 0.002 * step)))  # a plateau it is about to leave
    only(write(tmp_path / "e", readings(lambda step: 1e-4 * step)), "constant-answer")  # growth of noise


def test_a_collapse_that_training_taught_is_laid_to_the_targets(tmp_path):
    """Shuffled targets: tokens become alike because nothing depends on them, in a model whose gradients are in order."""

    def readings(step: int) -> Any:
        alike = min(0.999, 0.5 + 0.02 * step)
        return {**flat(step), "output_spread": {"model": 0.03}, "anisotropy": {"h.0.ln": alike, "ln_f": alike},
                "stream_grad": dict.fromkeys(BLOCKS, 0.1)}  # fmt: skip

    found = only(write(tmp_path / "a", readings, steps=90), "constant-answer")
    assert not any("placement" in text for text in found.try_)

    def dies(step: int) -> Any:
        return {**readings(step), "stream_grad": dict(zip(BLOCKS, (1e-6, 1e-4, 1e-2, 1.0), strict=True))}

    assert "token-collapse" in only(write(tmp_path / "b", dies, steps=90), "vanishing-gradient").why


def test_a_cosine_is_never_one_or_more(tmp_path):
    def readings(low: float, high: float) -> Any:
        return lambda step: {**flat(step), "anisotropy": {"h.0.ln": low, "ln_f": high}}

    assert "at least 0.9999 " in only(write(tmp_path / "a", readings(0.99999999, 1.0)), "token-collapse").why
    assert "at least 0.9962 " in only(write(tmp_path / "b", readings(0.9, 0.99629)), "token-collapse").why
    assert not diagnose(write(tmp_path / "c", readings(0.9, 0.98)))


@pytest.mark.parametrize(
    ("placement", "offered", "left_out"),
    [
        ("post", {'"pre"', '"deepnorm"'}, {"post"}),
        ("deepnorm", set(), {'"deepnorm"', '"pre"'}),
        (None, {'"pre"'}, set()),
    ],
)
def test_no_placement_is_advised_that_the_run_has(tmp_path, placement, offered, left_out):
    def readings(step: int) -> Any:
        return {**flat(step), "stream_grad": dict(zip(BLOCKS, (1e-6, 1e-4, 1e-2, 1.0), strict=True))}

    info = {} if placement is None else {"structure": {"placement": placement}}
    found = only(write(tmp_path / "a", readings, **info), "vanishing-gradient")
    quoted = {
        word for text in found.try_ for word in text.split() for word in [word.strip(",;:")] if word.startswith('"')
    }
    assert offered <= quoted and not left_out & quoted
    assert any("norm_first=True" in text for text in found.try_) is (placement != "deepnorm")


def test_the_origin_of_a_blow_up_is_where_and_when_it_began(tmp_path):
    """The second block jumps at step 120; its gradient breaks the first one, which is the first not to be finite."""
    frames = [{"step": s, "loss": 2.5, "largest": {"h.0": 4.0, "h.1": 5.0, "h.2": 6.0}} for s in range(105, 120)]
    frames += [{"step": 120, "loss": 9.0, "largest": {"h.0": 4.1, "h.1": 5e20, "h.2": 5e20}},
               {"step": 121, "loss": "nan", "largest": {"h.0": "nan", "h.1": "nan", "h.2": "nan"}}]  # fmt: skip
    writer = runs.Writer(tmp_path / "a", {"sites": {"norms": {}, "blocks": BLOCKS}})
    for step in range(1, 121):
        writer.write(step, falling(min(step, 60)))
    writer.event(121, "nonfinite", site="h.0", frames=frames)
    writer.close()
    found = only(tmp_path / "a", "nonfinite")
    assert found.site == "h.1" and found.steps == (120, 121) and "5e+20 at step 120" in found.why


@pytest.mark.parametrize("order", (["ln_f", "h.0.ln", "h.1.ln"], ["h.0.ln", "h.1.ln", "ln_f"]))
@pytest.mark.parametrize("seen", (True, False))
def test_a_final_norm_counts_wherever_it_is_defined(tmp_path, order, seen):
    """OPT and wav2vec 2 define theirs in front of the blocks; without norms' readings nothing is claimed."""
    calls = ["h.0.ln", "h.1.ln", "ln_f"]
    writer = runs.Writer(tmp_path / "a", {"sites": {"norms": dict.fromkeys(order, "layer"), "blocks": ["h.0", "h.1"]}})
    for step in range(1, 31):
        readings = {"stream_rms": {"h.0": 1.5, "h.1": 3.0}}
        writer.write(step, {**readings, "length": dict.fromkeys(calls, 1.0)} if seen else readings)
    writer.close()
    assert not diagnose(tmp_path / "a")


def test_a_recorded_final_norm_is_believed(tmp_path):
    for name, final, expected in (("a", ["model.norm"], []), ("b", [], ["missing-final-norm"])):
        stack = {"placement": "pre", "blocks": [{"name": "h.0"}, {"name": "h.1"}], "final_norms": final}
        info = {"sites": {"norms": dict.fromkeys(["h.0.ln", "h.1.ln"], "rms"), "blocks": ["h.0", "h.1"]},
                "structure": {"placement": "pre", "stacks": [stack]}}  # fmt: skip
        writer = runs.Writer(tmp_path / name, info)
        for step in range(1, 31):
            writer.write(step, {"stream_rms": {"h.0": 1.5, "h.1": 3.0}})
        writer.close()
        assert [f.rule for f in diagnose(tmp_path / name).findings] == expected


def test_a_diagnosis_in_chinese(tmp_path):
    folder = write(tmp_path / "a", lambda step: {**flat(step), "output_spread": {"model": 0.05}})
    text = str(diagnose(folder, language="zh"))
    assert (
        "警告：答案不随输入变化（constant-answer）" in text
        and "目标似乎与输入无关" in text
        and "第 41 到 60 步" in text
    )
    with pytest.raises(ValueError, match="speaks en or zh, not 'fr'"):
        diagnose(folder, language="fr")
