"""An experiment says everything that decides a run's numbers: it survives TOML, refuses nonsense, and sets rate and evaluations."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import random
import string

import pytest

import normlab
from normlab import lab
from normlab.lab import train
from normlab.lab.experiment import TASK_OPTIONS, Experiment, read_toml
from normlab.lab.parts import model_config
from normlab.lab.tasks import find_task
from normlab.models import FeedForward
from normlab.runs import Run

# ---- TOML ------------------------------------------------------------------------------------------------------------

NESTED = {
    "dim": 48,
    "dropout": 0.1,
    "tie_embeddings": True,
    "norm_options": {"eps": 1e-06, "bias": False, "of": {"deep er": [1, 2.5, "x"], "empty": {}}},
    "rows": [{"a": 1, "b.c": "ü"}, {}],
    "words": 'quotes " and \\ and \n and \x7f and 😀 and \t',
}


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment(),
        Experiment(norm="rms", placement="post", lr=1e-5, seed=2**40, steps=7, batch_size=12, accumulate=3, held_out=0),
        Experiment(model=NESTED, options={"length": 32}, betas=(0.5, 0.999), warmup=1, clip=0, weight_decay=0.0),
        Experiment(task="own", make_model="a.b:c", make_data="a:d", make_loss="e:f", schedule="linear", watch="none"),
        Experiment(files=("one.txt", "a folder/ü.md"), precision="bfloat16", threads=2, evaluations=3),
    ],
    ids=["default", "numbers", "nested", "own", "files"],
)
def test_toml_and_plain_values_are_read_back(tmp_path, experiment):
    path = tmp_path / "experiment.toml"
    path.write_text(experiment.to_toml(), encoding="utf-8")
    assert Experiment.read(path) == experiment
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    assert Experiment.read(path).to_dict() == experiment.to_dict()


def test_any_table_of_settings_survives_toml(tmp_path):
    draw = random.Random(20261115)
    letters = string.printable + "\x00\x1f\x7fé漢😀"

    def text():
        return "".join(draw.choice(letters) for _ in range(draw.randrange(8)))

    def value(depth):
        kinds = [
            text,
            lambda: draw.randrange(-(10**18), 10**18),
            lambda: draw.gauss(0, 1) * 10 ** draw.randrange(-30, 30),
        ]
        kinds.append(lambda: draw.random() < 0.5)
        if depth:
            kinds.append(lambda: [value(depth - 1) for _ in range(draw.randrange(3))])
            kinds.append(lambda: {text(): value(depth - 1) for _ in range(draw.randrange(4))})
        return draw.choice(kinds)()

    for number in range(150):
        experiment = Experiment(model={text(): value(3) for _ in range(draw.randrange(5))})
        path = tmp_path / f"{number}.toml"
        path.write_bytes(experiment.to_toml().encode())
        assert Experiment.read(path) == experiment, experiment.to_toml()


def test_a_file_that_is_no_toml_is_named(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("steps = ")
    with pytest.raises(ValueError, match=r"broken\.toml is not valid TOML"):
        read_toml(path)


def test_unknown_settings_suggest_the_nearest():
    with pytest.raises(ValueError, match=r"'step'.*Did you mean 'steps'"):
        Experiment.from_dict({"step": 3})
    with pytest.raises(ValueError, match=r"schedule 'cosin'.*Did you mean 'cosine'"):
        Experiment(schedule="cosin")


def test_an_option_of_the_task_is_told_from_a_setting_of_the_model():
    changed = Experiment(options={"length": 8}).changed(length=16, dim=32, lr=1.0)
    assert changed.options == {"length": 16} and changed.model == {"dim": 32} and changed.value("length") == 16
    own = {"task": "own", "make_model": "a:b", "make_data": "a:c"}
    assert Experiment(**own).changed(length=16).model == {"length": 16}  # of the user's own factory
    taken = {n for facts in lab.TASKS.values() for n in inspect.signature(facts.make).parameters} - {"files"}
    assert taken == set(TASK_OPTIONS)


# ---- what is refused -------------------------------------------------------------------------------------------------

BAD = {
    "schedule": ["", "step", None, 3],
    "precision": ["float16", None],
    "watch": ["some", None],
    "seed": [-1, 1.5, "0", None, True],
    "steps": [0, -3, 2.0, "5", None, True],
    "accumulate": [0, 1.0, None],
    "evaluations": [0, None, 0.5],
    "threads": [0, None],
    "batch_size": [0, -1, 4.0, "8"],
    "held_out": [-1, 2.5, None, "all"],
    "lr": [0, -1e-3, math.nan, math.inf, "1e-3", None, True],
    "warmup": [-0.1, 1.01, math.nan, "0.1", None],
    "weight_decay": [-1, math.nan, math.inf, None],
    "clip": [-1, math.nan, math.inf, None, "1"],
    "betas": [(0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, 0.98, 0.99), 0.9, "ab", None, (0.9, math.nan), (True, 0.9)],
    "optimizer": ["adam", None, 3],
    "momentum": [-0.1, 1, 1.0, math.nan, "0.9", None, True],
    "norm": [None, 3],
    "placement": [None],
    "task": [None],
    "files": ["a.txt", (1,), None],
    "model": [None, [1], "dim=3", {"dim": math.nan}, {"dim": {1, 2}}],
    "options": [3, {"length": math.inf}],
    "make_model": [3],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD.items() for v in values])
def test_a_bad_value_is_refused_by_name_and_value(name, value):
    for make in (lambda: Experiment(**{name: value}), lambda: Experiment.from_dict({name: value})):
        with pytest.raises(ValueError, match=name) as caught:
            make()
        assert repr(value) in str(caught.value) or repr(list(value)) in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task": "own"}, "make_model and make_data"),
        ({"task": "own", "make_model": "a:b"}, "make_model and make_data"),
        ({"make_model": "a:b", "make_data": "a:c"}, 'task="own"'),
        ({"make_loss": "a:b"}, 'task="own"'),
        ({"task": "docs", "files": ("a.txt",)}, "files belong to"),
        ({"batch_size": 7, "accumulate": 2}, "accumulate=2 does not divide batch_size=7"),
    ],
)
def test_what_does_not_go_together_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        Experiment(**values)


def test_an_experiment_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        Experiment().lr = 3.0


# ---- rates and evaluations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7, 20, 101])
@pytest.mark.parametrize("warmup", [0.0, 0.001, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_learning_rates_rise_and_fall_as_described(schedule, warmup, steps):
    """Against interpolation between the corners that the documentation names: 0, the peak, a tenth of it."""
    peak = 3e-3
    experiment = Experiment(lr=peak, steps=steps, warmup=warmup, schedule=schedule)
    top = 0 if warmup == 0 else max(1, round(steps * warmup))
    for step in range(1, steps + 1):
        if step <= top:
            want = peak * step / top
        elif schedule == "constant":
            want = peak
        elif schedule == "linear":
            want = peak + (0.1 * peak - peak) * (step - top) / (steps - top)
        else:  # half a turn of a circle, seen from the side
            middle, radius = 0.55 * peak, 0.45 * peak
            want = middle + radius * math.sin(math.pi / 2 + math.pi * (step - top) / (steps - top))
        assert experiment.learning_rate(step) == pytest.approx(want, rel=1e-12), step
    assert max(map(experiment.learning_rate, range(1, steps + 1))) <= peak
    if top > 0:
        assert experiment.learning_rate(top) == peak
    if schedule != "constant" and top < steps:
        assert experiment.learning_rate(steps) == pytest.approx(0.1 * peak)


def test_evaluations_are_as_many_as_asked_even_and_end_at_the_end():
    pairs = [(s, e) for s in range(1, 61) for e in range(1, 70, 3)]
    pairs += [(s, e) for s in (97, 100, 199, 1000, 4999) for e in (1, 3, 7, 8, 49, 98)]
    for steps, evaluations in pairs:
        experiment = Experiment(steps=steps, evaluations=evaluations)
        found = [step for step in range(1, steps + 1) if experiment.evaluates(step)]
        assert len(found) == min(steps, evaluations), (steps, evaluations)
        assert found[-1] == steps
        gaps = {b - a for a, b in zip([0, *found], found, strict=False)}
        assert max(gaps) - min(gaps) <= 1, (steps, evaluations, gaps)


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_changed_sends_other_names_to_the_model():
    base = Experiment(model={"dim": 32, "num_layers": 2})
    other = base.changed(lr=0.5, dim=64, num_heads=2)
    assert other.lr == 0.5 and other.model == {"dim": 64, "num_layers": 2, "num_heads": 2}
    assert base.lr == 1e-3 and base.model == {"dim": 32, "num_layers": 2}
    assert base.changed(model={"dim": 8}, num_heads=1).model == {"dim": 8, "num_heads": 1}
    assert other.value("lr") == 0.5 and other.value("dim") == 64 and other.value("absent") is None
    with pytest.raises(ValueError, match="lr"):
        base.changed(lr=-1)


def test_differences_name_the_fields():
    base = Experiment(model={"dim": 32}, betas=(0.9, 0.98))
    assert base.differences(base.changed()) == []
    assert base.differences(Experiment.from_dict(base.to_dict())) == []
    assert base.differences(base.changed(dim=64, lr=0.1, seed=3)) == ["lr", "seed", "model"]
    assert base.differences(base.changed(betas=(0.9, 0.99))) == ["betas"]


# ---- sizes that follow others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "docs", "dates", "digits"])
def test_the_inner_width_follows_the_width_unless_it_is_said(name):
    if name == "digits":
        pytest.importorskip("sklearn")
    task = find_task(name)
    for model, inner in (({}, 256), ({"dim": 32}, 128), ({"dim": 32, "ffn_dim": 256}, 256)):
        config, _ = model_config(Experiment(task=name, model=model), task)
        assert config.resolved()["ffn_dim"] == inner
        assert {m.down.in_features for m in normlab.build(config).modules() if isinstance(m, FeedForward)} == {inner}


def test_resolved_settings_say_what_was_left_open():
    config = normlab.TransformerConfig(architecture="encoder-decoder", dim=24, num_layers=3)
    assert config.ffn_dim is None and dataclasses.replace(config, dim=8).inner_width == 32
    values = config.resolved()
    assert (values["ffn_dim"], values["num_kv_heads"], values["num_decoder_layers"]) == (96, 4, 3)
    again = normlab.TransformerConfig.from_dict(values)
    assert again.resolved() == values == json.loads(json.dumps(values))


def test_a_run_says_the_inner_width_of_its_model_and_old_experiments_stay_readable(tmp_path):
    pytest.importorskip("safetensors")
    sizes = {"dim": 8, "num_heads": 2, "num_layers": 1}
    few = {"steps": 1, "batch_size": 2, "held_out": 2, "evaluations": 1, "watch": "none"}
    for folder, model, inner in (("follows", sizes, 32), ("said", {**sizes, "ffn_dim": 256}, 256)):
        experiment = Experiment.from_dict({**Experiment().to_dict(), "model": model, **few})
        train(experiment, tmp_path / folder)
        info = Run(tmp_path / folder).info
        assert info["model"]["ffn_dim"] == inner and info["experiment"]["model"] == model
        assert info["parameters"] == sum(p.numel() for p in normlab.build(**info["model"]).parameters())
