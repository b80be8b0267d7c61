"""Diagnosis: each rule on written readings, on both sides of its threshold."""

from __future__ import annotations

import ast
import json
import math
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from named_findings import named, only

import normlab
from normlab import diagnosis, runs
from normlab.diagnosis import ADVICE, FEW, RULES, SEVERITIES, SOURCES, diagnose
from normlab.diagnosis.advice import PLACEMENTS as PLACEMENT_ADVICE
from normlab.diagnosis.words import LANGUAGES

BLOCKS = [f"layers.{i}" for i in range(4)]
NORMS = {**{f"layers.{i}.norm": "layer" for i in range(4)}, "final": "layer"}
Values = dict[str, dict[str, float]]


# ---- written runs ----------------------------------------------------------------------------------------------------


def healthy(step: int, draw: random.Random) -> Values:
    """Readings such as a good run gives, with their noise."""

    def about(value: float, share: float = 0.1) -> float:
        return value * (1 + share * draw.gauss(0, 1))

    return {
        "loss": {"model": about(2.5 + 3 * math.exp(-step / 20), 0.04)},
        "lr": {"model": 1e-3},
        "grad_norm": {"model": about(1.0)},
        "update_ratio": {b: about(2e-3) for b in BLOCKS},
        "stream_grad": {b: about(0.02 / (1 + i)) for i, b in enumerate(BLOCKS)},
        "param_grad": {b: about(0.2) for b in BLOCKS},
        "stream_rms": {b: about(1.5 + i, 0.02) for i, b in enumerate(BLOCKS)},
        "angle": {b: about(0.2 / (1 + 0.3 * i), 0.05) for i, b in enumerate(BLOCKS)},
        "max_logit": {f"{b}.attention": about(5.0) for b in BLOCKS},
        "attention_entropy": {f"{b}.attention": about(0.8, 0.02) for b in BLOCKS},
        "anisotropy": {n: about(0.5) for n in NORMS},
        "gain_rms": {n: about(1.0, 0.01) for n in NORMS},
        "gain_max": {n: about(1.2, 0.01) for n in NORMS},
        "batch_mean_distance": {n: about(0.05) for n in NORMS},
        "batch_var_distance": {n: about(0.05) for n in NORMS},
        "batch_mean_distance_padded": {n: about(0.05) for n in NORMS},
        "padding_share": {n: 0.4 for n in NORMS},
        "inference_gap": {n: about(0.08) for n in NORMS},
    }


def write(
    folder: Path, change: Callable[[int, Values], None] = lambda step, values: None, *, steps: int = 90, every: int = 1,
    norms: dict[str, str] = NORMS, events: tuple[dict[str, Any], ...] = (), seed: int = 0, **info: Any,
) -> runs.Run:  # fmt: skip
    draw = random.Random(seed)
    writer = runs.Writer(folder, {"sites": {"norms": norms, "blocks": BLOCKS}, **info})
    for step in range(1, steps + 1):
        values = healthy(step, draw)
        change(step, values)
        writer.write(step, values if step % every == 0 or step == 1 else {"loss": values["loss"]})
    for event in events:
        writer.event(**event)
    writer.close()
    return runs.Run(folder)


write_all = write


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("steps", "every"), [(3, 1), (40, 1), (90, 1), (400, 10), (60, 25)])
def test_a_healthy_run_has_no_finding(tmp_path, steps, every, seed):
    run = write(tmp_path / "a", steps=steps, every=every, seed=seed)
    assert not diagnose(run), str(diagnose(run))


def test_no_finding_says_what_was_looked_at(tmp_path):
    text = str(diagnose(write(tmp_path / "a", steps=90, every=2)))
    assert "No finding" in text
    assert "90 steps" in text and "46 of them recorded" in text and "18 quantities" in text
    assert "need" not in text
    assert f"need {FEW} recorded steps" in str(diagnose(write(tmp_path / "b", steps=5)))


def test_an_empty_run_and_one_with_a_loss_only_are_fine(tmp_path):
    runs.Writer(tmp_path / "a").close()
    assert not diagnose(tmp_path / "a")
    writer = runs.Writer(tmp_path / "b")
    for step in range(1, 100):
        writer.write(step, {"loss": {"model": 3.0 / step}})
    writer.close()
    assert not diagnose(tmp_path / "b")
    with pytest.raises(normlab.RunUnreadable):
        diagnose(tmp_path / "c")


def test_early_transients_are_not_findings(tmp_path):
    def wild_start(step: int, values: Values) -> None:
        if step <= 15:
            values["grad_norm"]["model"] = 1e3
            values["stream_grad"] = dict(zip(BLOCKS, (1.0, 0.1, 0.01, 0.001), strict=True))
            values["max_logit"] = dict.fromkeys(values["max_logit"], 80.0)
            values["attention_entropy"] = dict.fromkeys(values["attention_entropy"], 0.01)
            values["anisotropy"] = dict.fromkeys(values["anisotropy"], 0.999)
            values["inference_gap"] = dict.fromkeys(values["inference_gap"], 3.0)
            values["batch_mean_distance"] = dict.fromkeys(values["batch_mean_distance"], 3.0)
            values["loss"]["model"] = 30.0

    run = write(tmp_path / "a", wild_start, norms=dict.fromkeys(NORMS, "batch"))
    assert not diagnose(run), str(diagnose(run))


def every_step(quantity: str, **sites: float) -> Callable[[int, Values], None]:
    def change(step: int, values: Values) -> None:
        for site, value in sites.items():
            values[quantity][site.replace("_", ".")] = value

    return change


def test_stream_gradients_by_depth(tmp_path):
    exploding = write(tmp_path / "a", every_step("stream_grad", layers_0=50.0, layers_3=0.1))
    found = only(exploding, "exploding-gradient")
    assert found.severity == "critical" and found.site == "layers.0" and found.steps == (61, 90)
    assert "50" in found.why and "0.1" in found.why
    vanishing = write(tmp_path / "b", every_step("stream_grad", layers_0=1e-6, layers_3=0.1))
    found = only(vanishing, "vanishing-gradient")
    assert found.site == "layers.0" and any("deepnorm" in t for t in found.try_) and "2002.04745" in found.source


def test_parameter_gradients_serve_where_the_streams_were_not_recorded(tmp_path):
    def change(step: int, values: Values) -> None:
        del values["stream_grad"]
        values["param_grad"]["layers.0"] = 1e-9

    assert "param_grad" in only(write(tmp_path / "a", change), "vanishing-gradient").why


def test_a_threshold_crossed_now_and_then_is_not_a_finding(tmp_path):
    def change(step: int, values: Values) -> None:
        if step % 2:
            values["stream_grad"]["layers.0"] = 1e-9

    assert not diagnose(write(tmp_path / "a", change))


def test_a_loss_that_diverges(tmp_path):
    def change(step: int, values: Values) -> None:
        if step > 50:
            values["loss"]["model"] += 0.2 * (step - 50)
            values["grad_norm"]["model"] *= 20

    found = only(write(tmp_path / "a", change), "loss-divergence")
    assert found.severity == "critical" and found.steps[0] < 55 and found.steps[1] == 90
    assert "grad_norm went from" in found.why


def test_a_small_rise_or_a_noisy_loss_is_not_divergence(tmp_path):
    def small(step: int, values: Values) -> None:
        values["loss"]["model"] = 2.5 + 3 * math.exp(-step / 20) + (0.6 if step > 50 else 0.0)

    assert not diagnose(write(tmp_path / "a", small))

    def noisy(step: int, values: Values) -> None:
        values["loss"]["model"] = 5.0 if step % 2 == 0 else 1.0

    assert not diagnose(write(tmp_path / "b", noisy))


def test_a_loss_that_only_rises_is_above_its_start(tmp_path):
    def change(step: int, values: Values) -> None:
        values["loss"]["model"] = 2 + 0.05 * step

    assert "loss-divergence" in named(write(tmp_path / "a", change))


def test_a_learning_rate_that_is_too_high_or_too_low(tmp_path):
    def high(step: int, values: Values) -> None:
        values["loss"]["model"] = 3.2 + 0.1 * random.Random(step).random()
        values["update_ratio"] = dict.fromkeys(BLOCKS, 0.6 if step < 5 else 0.01)
        values["lr"]["model"] = 0.1

    found = only(write(tmp_path / "a", high), "learning-rate-high")
    assert found.steps[0] == 1 and "0.6" in found.why and "60 times lower" in found.try_[0]

    def low(step: int, values: Values) -> None:
        values["loss"]["model"] = 6 + 0.1 * random.Random(step).random()
        values["update_ratio"] = dict.fromkeys(BLOCKS, 1e-6)

    found = only(write(tmp_path / "b", low), "learning-rate-low")
    assert found.severity == "warning" and found.steps == (1, 90) and "1e+03 times higher" in found.try_[0]


def test_small_steps_that_still_learn_are_not_too_small(tmp_path):
    assert not diagnose(
        write(tmp_path / "a", every_step("update_ratio", **{b.replace(".", "_"): 1e-6 for b in BLOCKS}))
    )


def test_a_spike_names_what_jumped_first(tmp_path):
    def change(step: int, values: Values) -> None:
        if step in (60, 61):
            values["loss"]["model"] = 9.0 + (step == 61)
            values["grad_norm"]["model"] = 50.0
        if step in (57, 58, 59, 60):
            values["max_logit"]["layers.2.attention"] = 40.0

    found = only(write(tmp_path / "a", change), "loss-spike")
    assert found.site == "layers.2.attention" and found.steps == (57, 60) and "3 steps before" in found.why
    assert "max_logit" in found.why and "back by step 62" in found.why

    def alone(step: int, values: Values) -> None:
        if step == 60:
            values["loss"]["model"] = 9.0

    found = only(write(tmp_path / "b", alone), "loss-spike")
    assert found.site is None and found.steps == (60, 60) and "None of the recorded quantities" in found.why


def test_stream_growth_over_steps_and_by_depth(tmp_path):
    def over_steps(step: int, values: Values) -> None:
        for block in BLOCKS:
            values["stream_rms"][block] *= 1 + step

    assert only(write(tmp_path / "a", over_steps), "stream-growth").site == "layers.3"
    assert only(write(tmp_path / "b", every_step("stream_rms", layers_3=200.0)), "stream-growth").site == "layers.3"


def test_a_missing_final_norm(tmp_path):
    inside = {n: k for n, k in NORMS.items() if n != "final"}

    def write(folder: Path, change: Any = lambda step, values: None, **options: Any) -> runs.Run:
        def without(step: int, values: Values) -> None:
            for sites in values.values():
                sites.pop("final", None)
            change(step, values)

        return write_all(folder, without, **options)

    found = only(write(tmp_path / "a", norms=inside), "missing-final-norm")
    assert found.site == "layers.3" and "final_norm=True" in found.try_[0] and "layers.3.norm" in found.why
    assert "norm=nn.LayerNorm(width)" in found.try_[0]

    def post(step: int, values: Values) -> None:
        values["stream_rms"] = dict.fromkeys(BLOCKS, 1.02)

    assert not diagnose(write(tmp_path / "b", post, norms=inside))
    assert not diagnose(write(tmp_path / "c", norms={}))
    flat = every_step("stream_rms", layers_0=3.0, layers_1=3.0, layers_2=3.0, layers_3=3.0)
    assert not diagnose(write(tmp_path / "d", flat, norms=inside))
    held = every_step("stream_rms", layers_0=1.0, layers_1=1.1, layers_2=1.2, layers_3=1.3)
    assert not diagnose(write(tmp_path / "e", held, norms=inside))


def test_the_encoders_final_norm_is_not_the_decoders(tmp_path):
    blocks = ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]
    norms = {"encoder.0.norm": "rms", "encoder.1.norm": "rms", "decoder.0.norm": "rms", "decoder.1.norm": "rms"}
    for name, final, expected in (("a", ["end_e", "end_d"], []), ("b", ["end_d"], ["encoder.1"])):
        order = list(norms)
        order[2:2] = [n for n in final if n == "end_e"]
        order += [n for n in final if n == "end_d"]
        writer = runs.Writer(tmp_path / name, {"sites": {"norms": dict.fromkeys(order, "rms"), "blocks": blocks}})
        for step in range(1, 31):
            readings = {
                "length": dict.fromkeys(order, 1.0),
                "stream_rms": dict(zip(blocks, (1.5, 3.0, 1.5, 3.0), strict=True)),
            }
            writer.write(step, readings)
        writer.close()
        assert [f.site for f in diagnose(tmp_path / name).findings] == expected


def test_dead_upper_blocks(tmp_path):
    still = every_step("angle", layers_0=0.3, layers_1=0.02, layers_2=0.005, layers_3=0.005)
    found = only(write(tmp_path / "a", still), "dead-upper-blocks")
    assert found.site == "layers.2" and "of 4 blocks" in found.verdict

    def died(step: int, values: Values) -> None:
        upper = 0.1 if step < 20 else 0.012
        values["angle"] = dict(zip(BLOCKS, (0.3, 0.03, upper, upper), strict=True))

    assert only(write(tmp_path / "c", died), "dead-upper-blocks").site == "layers.2"

    def gpt2(step: int, values: Values) -> None:
        """A small embedding: the first block turns it by much, the others grow with training."""
        upper = 0.02 + 0.0002 * step
        values["angle"] = dict(zip(BLOCKS, (0.4, 0.05, upper, upper), strict=True))

    assert not diagnose(write(tmp_path / "d", gpt2))

    def llama(step: int, values: Values) -> None:
        """The first block grows first: the others' angles fall to less than half, and stay above a twentieth of its."""
        upper = 0.1 if step < 20 else 0.03
        values["angle"] = dict(zip(BLOCKS, (0.3, 0.03, upper, upper), strict=True))

    assert not diagnose(write(tmp_path / "e", llama))
    half = every_step("angle", layers_0=0.3, layers_1=0.3, layers_2=0.04, layers_3=0.04)
    assert not diagnose(write(tmp_path / "b", half))


def test_token_collapse_needs_a_stalled_loss(tmp_path):
    def change(step: int, values: Values) -> None:
        values["anisotropy"]["final"] = 0.999

    assert only(write(tmp_path / "a", change, steps=200), "token-collapse").site == "final"

    def learning(step: int, values: Values) -> None:
        change(step, values)
        values["loss"]["model"] = 6 - 0.03 * step

    assert not diagnose(write(tmp_path / "b", learning))


def test_unsteady_statistics_concern_norms_over_tokens(tmp_path):
    change = every_step("batch_mean_distance", layers_1_norm=0.6)

    def without_padding(step: int, values: Values) -> None:
        change(step, values)
        del values["padding_share"]

    batch = write(tmp_path / "a", without_padding, norms={**NORMS, "layers.1.norm": "batch"})
    found = only(batch, "unstable-batch-statistics")
    assert found.severity == "warning" and found.site == "layers.1.norm" and "0.6" in found.why
    layer = write(tmp_path / "b", change)
    assert not diagnose(layer)
    note = named(layer, include_notes=True)["unstable-batch-statistics"]
    assert note.severity == "note" and note.site == "layers.1.norm"


def test_padding_contamination_is_told_from_unsteady_statistics(tmp_path):
    batch = dict.fromkeys(NORMS, "batch")

    def ignores_the_mask(step: int, values: Values) -> None:
        values["batch_mean_distance"] = dict.fromkeys(NORMS, 0.5)
        values["batch_mean_distance"]["layers.2.norm"] = 0.8

    found = only(write(tmp_path / "a", ignores_the_mask, norms=batch), "padding-contamination")
    assert found.site == "layers.2.norm" and "40%" in found.why and "Other sites like it: 4" in found.why

    def small_batches(step: int, values: Values) -> None:
        ignores_the_mask(step, values)
        values["batch_mean_distance_padded"] = dict.fromkeys(NORMS, 0.4)

    assert list(named(write(tmp_path / "b", small_batches, norms=batch))) == ["unstable-batch-statistics"]


def test_a_gap_between_training_and_inference(tmp_path):
    found = only(write(tmp_path / "a", every_step("inference_gap", layers_1_norm=0.5)), "train-inference-gap")
    assert found.site == "layers.1.norm" and "50%" in found.why


def test_gains_that_jump_grow_or_die(tmp_path):
    def jump(step: int, values: Values) -> None:
        if step >= 37:
            values["gain_max"]["layers.1.norm"] = 30.0

    found = only(write(tmp_path / "a", jump), "gain-explosion")
    assert found.severity == "critical" and found.site == "layers.1.norm" and found.steps == (36, 37)

    def grow(step: int, values: Values) -> None:
        values["gain_max"]["final"] = 1.2 * 1.06**step

    found = only(write(tmp_path / "b", grow), "gain-explosion")
    assert found.severity == "warning" and found.site == "final"

    def die(step: int, values: Values) -> None:
        values["gain_rms"]["layers.0.norm"] = 1e-3 + math.exp(-step / 8)

    decays = {"class": "AdamW", "lr": 1e-3, "weight_decay": 80.0, "decays_vectors": True}
    found = only(write(tmp_path / "c", die, optimizer=decays), "dead-gain")
    assert (
        found.site == "layers.0.norm"
        and "0.001" in found.why
        and "AdamW([" in found.try_[0]
        and "80 now" in found.try_[0]
    )
    spared = write(tmp_path / "d", die, optimizer={**decays, "decays_vectors": False})
    assert not any("no weight decay" in text for text in only(spared, "dead-gain").try_)


def test_a_gain_that_began_at_zero_is_not_blamed_on_weight_decay(tmp_path):
    def begins(step: int, values: Values) -> None:
        values["gain_rms"]["layers.0.norm"] = 1e-5 * step
        values["gain_grad"] = {"layers.0.norm": 0.01}

    assert not diagnose(write(tmp_path / "a", begins))

    def stays(step: int, values: Values) -> None:
        values["gain_rms"]["layers.0.norm"] = 0.0
        values["gain_grad"] = {"layers.0.norm": 0.0}

    found = only(write(tmp_path / "b", stays), "dead-gain")
    assert "gets no gradient" in found.verdict and not any("decay" in text for text in found.try_)


def test_attention_logits_and_entropy(tmp_path):
    def grow(step: int, values: Values) -> None:
        values["max_logit"]["layers.1.attention"] = 3.0 + 0.5 * step

    found = only(write(tmp_path / "a", grow), "attention-logit-growth")
    assert found.site == "layers.1.attention" and 'qk_norm="head"' in found.try_[0]
    assert only(write(tmp_path / "c", every_step("max_logit", layers_1_attention=60.0)), "attention-logit-growth")
    assert not diagnose(write(tmp_path / "d", every_step("max_logit", layers_1_attention=30.0)))
    sharp = write(tmp_path / "b", every_step("attention_entropy", layers_2_attention=0.01))
    assert only(sharp, "attention-logit-growth").site == "layers.2.attention"


def frames(*largest: float | str, first: int = 30) -> list[dict[str, Any]]:
    return [{"step": first + i, "loss": v if isinstance(v, str) else 2.5, "largest": {"layers.0": 4.0, "layers.1": v}}
            for i, v in enumerate(largest)]  # fmt: skip


def test_a_value_that_is_not_finite_tells_growth_from_a_sudden_event(tmp_path):
    def change(step: int, values: Values) -> None:
        if step >= 34:
            values["loss"]["model"] = math.nan
            values["stream_grad"]["layers.0"] = math.nan

    grown = frames(4.0, 40.0, 4e3, 4e7, "inf")
    event = {"step": 34, "event": "nonfinite", "site": "layers.1", "frames": grown}
    found = only(write(tmp_path / "a", change, steps=60, events=(event,)), "nonfinite")
    assert found.site == "layers.1" and found.steps == (31, 34) and "4 before, was 40 at step 31" in found.why
    sudden = {**event, "frames": frames(4.0, 4.1, 4.0, 4.2, "nan")}
    found = only(write(tmp_path / "b", change, steps=60, events=(sudden,)), "nonfinite")
    assert "Nothing had grown" in found.why and "batch" in found.try_[0] and found.steps == (30, 34)


def test_what_comes_after_a_value_that_is_not_finite_is_not_judged(tmp_path):
    def change(step: int, values: Values) -> None:
        if step == 20:
            values["loss"]["model"] = math.nan
        if step > 20:
            values["stream_rms"] = dict.fromkeys(BLOCKS, 1e6)
            values["stream_grad"]["layers.0"] = 1e9

    assert only(write(tmp_path / "a", change), "nonfinite").steps[0] == 20


def test_an_event_that_comes_late_is_dated_by_its_frames(tmp_path):
    event = {"step": 50, "event": "nonfinite", "site": "layers.0", "frames": frames(4.0, 4.1, "nan", "nan", first=40)}
    found = only(write(tmp_path / "a", steps=50, events=(event,)), "nonfinite")
    assert found.steps == (40, 42) and found.site == "layers.1"


def test_a_run_without_a_trace_still_tells_where(tmp_path):
    def change(step: int, values: Values) -> None:
        if step >= 20:
            values["loss"]["model"] = math.inf
            values["stream_rms"]["layers.2"] = math.nan

    found = only(write(tmp_path / "a", change, steps=30), "nonfinite")
    assert found.site == "layers.2" and found.steps == (20, 20)


def test_an_infinite_gradient_norm_alone_is_not_the_end(tmp_path):
    def change(step: int, values: Values) -> None:
        if step == 40:
            values["grad_norm"]["model"] = math.inf

    assert not diagnose(write(tmp_path / "a", change))


def test_leaks_as_an_event_or_in_the_info(tmp_path):
    event = {"step": 10, "event": "leak", "moved": [0, 1, 2], "cut": 4, "mode": "train", "change": 0.2,
             "first_module": "layers.0.norm"}  # fmt: skip
    found = only(write(tmp_path / "a", events=(event,)), "leak")
    assert found.severity == "critical" and found.site == "layers.0.norm" and found.steps == (10, 10)
    assert "moved 3 earlier outputs" in found.why and "position 4" in found.why and "train" in found.why
    assert only(write(tmp_path / "b", leaks=[{"mode": "eval", "moved": [1]}]), "leak").site is None
    assert not diagnose(write(tmp_path / "c", leaks=[]))
    assert not diagnose(write(tmp_path / "d", events=({"step": 1, "event": "leak", "moved": []},)))


def test_what_leaks_finds_in_a_model_is_named(tmp_path):
    torch.manual_seed(0)
    model = normlab.build(architecture="decoder", dim=8, num_layers=1, num_heads=2, vocab_size=11, max_length=8,
                          norm=lambda width: normlab.BatchNorm(width))  # fmt: skip
    report = normlab.leaks(model, torch.randint(0, 11, (4, 8)))
    found = only(write(tmp_path / "a", leaks=report.to_list()), "leak")
    assert found.site == report.found[0].first_module and found.severity == "critical"


def test_findings_are_ordered_readable_and_json(tmp_path):
    def change(step: int, values: Values) -> None:
        values["max_logit"]["layers.1.attention"] = 99.0
        values["stream_grad"]["layers.0"] = 1e-9
        values["inference_gap"]["final"] = 0.9
        values["batch_mean_distance"]["layers.1.norm"] = 0.9

    diagnosis_ = diagnose(write(tmp_path / "a", change), include_notes=True)
    severities = [SEVERITIES.index(f.severity) for f in diagnosis_.findings]
    assert severities == sorted(severities) == [0, 1, 1, 2]
    text = str(diagnosis_)
    assert "1 critical, 2 warnings, 1 note" in text
    for finding in diagnosis_.findings:
        for part in (finding.rule, finding.verdict, finding.why, *finding.try_, finding.source, "steps 61 to 90"):
            assert part in text
    again = json.loads(json.dumps(diagnosis_.to_dict()))
    assert [f["rule"] for f in again["findings"]] == [f.rule for f in diagnosis_.findings]
    assert again["last_step"] == 90 and "try" in again["findings"][0]


def test_every_rule_gives_its_reason_and_its_advice():
    assert set(RULES) == set(SOURCES) == {key.partition("/")[0] for key in ADVICE}
    for name, rule in RULES.items():
        assert rule.__name__ == name.replace("-", "_")
        assert rule.__doc__ and ("Measured" in rule.__doc__ or "No threshold" in rule.__doc__)
    wanted = {f"try/{key}" for keys in ADVICE.values() for key in keys}
    for language, texts in LANGUAGES.items():
        assert wanted == {key for key in texts if key.startswith("try/")}, language
        for key, text in texts.items():
            fields = {name for _, name, _, _ in string.Formatter().parse(text) if name}
            assert fields == {name for _, name, _, _ in string.Formatter().parse(LANGUAGES["en"][key]) if name}, key
    assert set(PLACEMENT_ADVICE) == {key for keys in ADVICE.values() for key in keys if key.startswith("placement")}


def test_placements_and_norms_in_the_advice_exist():
    known = {
        *normlab.PLACEMENTS,
        *normlab.NORMS,
        "head",
        "position",
        "running",
        "offset",
        "decoder",
        "params",
        "weight_decay",
        "eps",
    }
    for texts in LANGUAGES.values():
        for key, text in texts.items():
            if key.startswith("try/"):
                assert set(text.split('"')[1::2]) <= known, text
    assert {p for options in PLACEMENT_ADVICE.values() for p in options} <= set(normlab.PLACEMENTS)


def test_diagnosis_does_not_import_torch():
    tree = ast.parse(Path(diagnosis.__file__).read_text(encoding="utf-8"))
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert "torch" not in {name.split(".")[0] for name in imported}
