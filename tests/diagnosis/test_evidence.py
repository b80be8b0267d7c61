"""What a rule could not look at is said; and evidence that clears: written readings of healthy models that look like sick ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from named_findings import named, only

from normlab import runs
from normlab.diagnosis import FEW, NEEDS, RULES, diagnose
from normlab.diagnosis.words import LANGUAGES, rule_in

BLOCKS = ["h.0", "h.1", "h.2"]


def write(folder: Path, readings: Any, *, steps: int = 60, norms: dict[str, str] | None = None, **info: Any) -> Path:
    held = {"norms": {"h.0.ln": "layer", "ln_f": "layer"} if norms is None else norms, "blocks": BLOCKS}
    writer = runs.Writer(folder, {"sites": held, **info})
    for step in range(1, steps + 1):
        found = readings(step)
        writer.write(step, {"loss": {"model": 3.0 - 0.03 * step + 0.1 * (step % 2)}, **found})
    writer.close()
    return folder


# ---- what could not be looked at -------------------------------------------------------------------------------------


def lean(whole: int, recorded: int = 13) -> Any:
    """Of 13 recordings so many have the readings of the whole set."""

    def readings(step: int) -> dict[str, dict[str, float]]:
        if step % 4 or step > 4 * recorded:
            return {}
        found = {"grad_norm": {"model": 1.0}, "gain_rms": {"ln_f": 1.0}}
        return (
            {**found, "max_logit": {"h.0.attention": 400.0}, "eps_share": {"ln_f": 0.9}} if step <= 4 * whole else found
        )

    return readings


ACCOUNT = {"due": 15, "recorded": 13, "lean": 11, "held_back": 2}


def test_a_lean_run_says_which_rules_could_not_look(tmp_path):
    found = diagnose(write(tmp_path / "a", lean(2), recording=ACCOUNT, max_overhead=0.03, every=4))
    assert not found and {b.rule: (b.readings, b.needed) for b in found.blind} == {
        "attention-logit-growth": (2, FEW),
        "eps-swallows": (2, FEW),
    }
    text = str(found)
    assert "Could not look: eps-swallows, attention-logit-growth (2 of 12 readings)." in text
    assert "max_overhead=None" in text and "11 were lean" in text and "dead-gain" not in text
    assert json.loads(json.dumps(found.to_dict()))["could_not_look"][0] == {
        "rule": "eps-swallows", "quantity": "eps_share", "readings": 2, "needed": FEW}  # fmt: skip
    whole_run = write(tmp_path / "b", lean(13), recording=ACCOUNT)
    assert "attention-logit-growth" in only(whole_run, "eps-swallows").why and not diagnose(whole_run).blind


@pytest.mark.parametrize(
    ("recording", "said", "not_said"),
    [
        (ACCOUNT, ["max_overhead=None", "more steps"], ["every="]),
        ({"due": 6, "recorded": 6, "lean": 0, "held_back": 0}, ["every=4", "more steps"], ["max_overhead"]),
        ({"due": 6, "recorded": 5, "lean": 0, "held_back": 1}, ["max_overhead=None", "every=4"], []),
        (None, ["more steps"], ["max_overhead"]),
    ],
)
def test_what_to_change_follows_from_what_was_held_back(tmp_path, recording, said, not_said):
    info = {} if recording is None else {"recording": recording}
    text = str(diagnose(write(tmp_path / "a", lean(5, 5), max_overhead=0.03, every=10, **info)))
    assert all(word in text for word in said) and not any(word in text for word in not_said), text


def test_a_run_that_broke_off_is_not_advised_to_go_on(tmp_path):
    found = diagnose(
        write(
            tmp_path / "a", lambda step: {**lean(13)(step), **({"loss": {"model": float("nan")}} if step == 30 else {})}
        )
    )
    assert [f.rule for f in found.findings] == ["nonfinite"] and found.blind and not found.change


def test_a_full_run_says_nothing_of_the_kind(tmp_path):
    for language in LANGUAGES:
        found = diagnose(write(tmp_path / language, lambda step: {"gain_rms": {"ln_f": 1.0}}), language=language)
        assert not found.blind and "12" not in str(found).removeprefix(str(tmp_path))


def test_rules_about_batch_norms_could_not_look_only_where_there_is_one(tmp_path):
    def readings(step: int) -> dict[str, dict[str, float]]:
        few = {"batch_mean_distance": {"h.0.ln": 0.1}, "batch_mean_distance_padded": {"h.0.ln": 0.1}}
        return few if step < 5 else {}

    assert not diagnose(write(tmp_path / "a", readings)).blind
    batch = diagnose(write(tmp_path / "b", readings, norms={"h.0.ln": "batch"}), language="zh")
    assert [b.rule for b in batch.blind] == ["padding-contamination", "unstable-batch-statistics"]
    assert rule_in("zh", "padding-contamination") in str(batch) and "4" in str(batch)


def test_every_rule_that_draws_a_window_is_listed():
    """Others need no window: a value that is not finite, a leak, a start, a jump of a gain."""
    assert set(RULES) - set(NEEDS) == {"nonfinite", "leak", "large-initialization", "gain-explosion"}


# ---- a start that is too large ---------------------------------------------------------------------------------------


def start(
    *,
    head: float = 11.3,
    spread: float | None = 0.96,
    stream: float = 1.4,
    alike: float | None = None,
    block: float = 1.0,
) -> Any:
    def readings(step: int) -> dict[str, dict[str, float]]:
        if step > 1:
            return {}
        found = {"weight_scale": {"h.0": block, "lm_head": head}, "stream_rms": dict.fromkeys(BLOCKS, stream)}
        found |= {} if spread is None else {"output_spread": {"model": spread}}
        return found if alike is None else {**found, "anisotropy": {"h.0.ln": 0.1, "ln_f": alike}}

    return readings


def test_a_tied_head_whose_answers_have_a_usual_size_is_healthy(tmp_path):
    """T5 scales what its head reads by width ** -0.5."""
    assert not diagnose(write(tmp_path / "a", start()))


@pytest.mark.parametrize(
    "sick", [{"spread": 12.8}, {"spread": None}, {"stream": 8.0}, {"spread": 0.9, "alike": 0.99}, {"spread": 3.2}]
)
def test_a_head_or_an_entrance_that_shows_is_named(tmp_path, sick):
    """In the answers; in answers that are alike because tokens are; in the stream; or where nothing was read of either."""
    assert only(write(tmp_path / "a", start(**sick)), "large-initialization").site == "lm_head"


def test_a_block_that_starts_too_large_is_not_laid_to_the_head(tmp_path):
    found = only(write(tmp_path / "a", start(block=5.0, stream=8.0)), "large-initialization")
    assert found.site == "h.0" and "Other sites" not in found.why


# ---- a stack without a final norm that needs none --------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "expected"), [(1, []), (-1, ["missing-final-norm"])])
def test_a_convolutional_stack_needs_no_norm_before_its_head(tmp_path, axis, expected):
    norms = {f"{b}.bn": "batch" for b in BLOCKS}
    stack = {"placement": "reordered", "blocks": [{"name": b} for b in BLOCKS], "final_norms": []}
    structure = {"placement": "reordered", "stacks": [stack],
                 "norms": [{"name": n, "kind": "batch", "channel_dim": axis} for n in norms]}  # fmt: skip
    sizes = dict(zip(BLOCKS, (1.2, 1.8, 2.4), strict=True))
    folder = write(tmp_path / "a", lambda step: {"stream_rms": sizes}, norms=norms, structure=structure)
    assert list(named(folder)) == expected


# ---- padding seen in the deviations alone ----------------------------------------------------------------------------


def padded(mean: float, var: float, var_padded: float, own: float = 0.03, gap: float = 0.073) -> Any:
    names = [f"{b}.bn" for b in BLOCKS]
    return lambda step: {
        "batch_mean_distance": dict.fromkeys(names, mean), "batch_mean_distance_padded": dict.fromkeys(names, 0.05),
        "batch_var_distance": dict.fromkeys(names, var), "batch_var_distance_padded": dict.fromkeys(names, var_padded),
        "padding_share": dict.fromkeys(names, 0.375), "running_distance_padded": dict.fromkeys(names, own),
        "inference_gap": dict.fromkeys(names, gap),
    }  # fmt: skip


def test_padding_that_shows_in_the_deviations_alone(tmp_path):
    """An embedding that gives padding the mean of the real tokens: zeros."""
    norms = {f"{b}.bn": "batch" for b in BLOCKS}
    found = only(write(tmp_path / "a", padded(0.073, 0.243, 0.057), norms=norms), "padding-contamination")
    assert "deviation" in found.why and "0.243" in found.why and "0.057" in found.why
    assert not diagnose(write(tmp_path / "b", padded(0.073, 0.12, 0.03), norms=norms))  # too little
    assert not diagnose(write(tmp_path / "c", padded(0.073, 0.243, 0.12), norms=norms))  # small batches
    # Statistics that stand still lie off all cells as well: their mean, or, around zero, their deviation.
    assert not diagnose(write(tmp_path / "d", padded(0.073, 0.24, 0.05, own=0.4), norms=norms))
    assert list(named(write(tmp_path / "e", padded(0.073, 0.24, 0.05, gap=0.64), norms=norms))) == [
        "train-inference-gap"
    ]


# ---- advice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "rate", "blamed"),
    [
        ({"class": "AdamW", "weight_decay": 0.01}, 2e-3, False),  # 0.001 of a factor in 60 steps
        ({"class": "AdamW", "weight_decay": 30.0}, 2e-3, True),
        ({"class": "SGD", "weight_decay": 30.0}, 2e-3, True),
        ({"class": "Adam", "weight_decay": 0.01}, 2e-3, False),  # its steps have the length of the rate
        ({"class": "Adam", "weight_decay": 0.01}, 2e-2, True),
    ],
)
def test_decay_is_blamed_only_for_what_it_can_do(tmp_path, optimizer, rate, blamed):
    def readings(step: int) -> dict[str, dict[str, float]]:
        return {"gain_rms": {"ln_f": 0.93**step if step < 40 else 0.0035}, "lr": {"model": rate}}

    found = only(
        write(tmp_path / "a", readings, steps=80, optimizer={**optimizer, "decays_vectors": True}), "dead-gain"
    )
    assert any("no weight decay" in text for text in found.try_) is blamed
    assert any("what writes to ln_f.weight" in text for text in found.try_) is not blamed
    assert any("offset" in text for text in found.try_) is blamed


@pytest.mark.parametrize(
    ("kind", "layer"),
    [("rms", "nn.RMSNorm(width, "), ("layer", "nn.LayerNorm(width, "), ("batch", "nn.BatchNorm1d(width, ")],
)
def test_an_eps_is_changed_in_a_norm_of_the_same_kind(tmp_path, kind, layer):
    folder = write(tmp_path / "a", lambda step: {"eps_share": {"ln_f": 0.9}}, norms={"ln_f": kind})
    for language in LANGUAGES:
        (found,) = diagnose(folder, language=language).findings
        assert layer in found.try_[0] and sum("nn." in word for word in found.try_[0].split()) == 1
