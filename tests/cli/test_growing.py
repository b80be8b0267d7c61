"""The command line of sweeps that grow: seeds, additions, looks, time; and mistakes that leave no folder."""

from __future__ import annotations

import json
import random
import subprocess

import pytest

from normlab import cli
from normlab.cli import compare as command
from normlab.cli.growing import seconds_of, seeds_of
from normlab.lab import Message, Sweep
from normlab.runs import Result, Writer

TINY = [
    "--set",
    "dim=16",
    "--set",
    "num_layers=1",
    "--set",
    "num_heads=2",
    "--set",
    "held_out=5",
    "--steps",
    "3",
    "--no-report",
]


class Planted:
    """Ends trials at once: rms is ``behind`` by so much, with a noise of 0.01."""

    def __init__(self, behind):
        self.behind, self.ran = behind, []

    def run(self, folder, trials, notify):
        while trials:
            trial = trials.popleft()
            self.ran.append(trial.name)
            e = trial.experiment
            loss = 2.3 + self.behind * (e.norm == "rms") + random.Random(trial.name).gauss(0, 0.01)
            result = {"outcome": "trained", "loss": loss, "seconds": 0.01}
            Writer(
                folder / "trials" / trial.name, {"experiment": e.to_dict(), "task": {"blind": 3.3}}, again=True
            ).close("finished", result=result)
            notify("ended", trial, Message(result=Result.from_dict(result)))


@pytest.fixture
def engine(monkeypatch):
    def plant(behind=0.0):
        planted = Planted(behind)
        monkeypatch.setattr(command, "_engine", lambda *_: planted)
        return planted

    return plant


def test_seeds_and_times_as_they_are_written():
    assert (
        seeds_of("3") == ([0, 1, 2], None)
        and seeds_of("3+2", 7) == ([7, 8, 9, 10, 11], 3)
        and seeds_of("2+0") == ([0, 1], 2)
    )
    for text in ("0", "0+2", "+2", "3+", "three", "-1", "3+2+1"):
        with pytest.raises(ValueError, match=r"--seeds must be at least 1, as 3 or as 3\+2"):
            seeds_of(text)
    assert [seconds_of(t) for t in ("90", "90s", "20m", "1.5h", "1h30m", "1m1s")] == [90, 90, 1200, 5400, 5400, 61]
    for text in ("", "0m", "soon", "-3s", "20 minutes"):
        with pytest.raises(ValueError, match="--time-limit needs a time such as"):
            seconds_of(text)


def test_a_sweep_grows_from_the_command_line(tmp_path, engine, capsys):
    folder, planted = tmp_path / "s", engine(0.05)
    first = [
        "compare",
        "--norm",
        "layer,rms",
        "--placement",
        "pre",
        "--lr",
        "1e-3,1e-2",
        "--seeds",
        "3+2",
        "--first-seed",
        "10",
        *TINY,
    ]
    assert cli.main([*first, "--out", str(folder)]) == 0
    assert len(planted.ran) == 2 * (6 + 2) and Sweep.read(folder).axes["seed"] == [10, 11, 12, 13, 14]
    grow = ["compare", "--resume", str(folder), "--no-report", "--seeds", "6", "--lr", "+3e-2", "--norm", "+scale"]
    capsys.readouterr()
    before = (folder / "sweep.json").read_bytes()
    assert cli.main([*grow, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "scale/pre  0 of at most 18 trials finished" in said and "layer/pre  8 of at most 18" in said
    assert "rates: 0.001, 0.01, 0.03" in said and "seeds: 10, 11, 12, 13, 14, 15" in said
    assert (folder / "sweep.json").read_bytes() == before
    done = len(planted.ran)
    assert cli.main(grow) == 0
    sweep, ran = Sweep.read(folder), planted.ran[done:]
    assert sweep.looks == (5,) and sweep.first_seeds == 3 and sweep.axes["norm"] == ["layer", "rms", "scale"]
    assert len(ran) == len(set(planted.ran)) - done, "nothing twice"
    assert "Look 2 at this sweep, after 1 with 5 seeds" in capsys.readouterr().out.replace("\n  ", " ")
    assert cli.main(grow) == 0 and planted.ran[done:] == ran, "the same command again has nothing to do"
    assert cli.main(["compare", "--resume", str(folder), "--no-report", "--seeds", "+1"]) == 0
    assert len(Sweep.read(folder).axes["seed"]) == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--norm", "scale"], "to add to it write --norm +scale"),
        (["--vary", "num_layers=+2"], "num_layers is no axis of this sweep"),
        (["--lr", "+quick"], "--lr needs numbers"),
        (["--seeds", "1"], "a sweep can only grow"),
        (["--seeds", "4+2"], "every rate of this sweep has 3 seeds"),
        (["--norm", "+lyaer"], "Did you mean 'layer'"),
        (["--steps", "9"], "leave --steps out"),
        (["--first-seed", "3"], "leave --first-seed out"),
        (["--until", "decided"], "--until needs --time-limit"),
        (["--time-limit", "soon"], "--time-limit needs a time"),
    ],
)
def test_growth_that_is_a_mistake_changes_nothing(tmp_path, engine, capsys, options, words):
    folder = tmp_path / "s"
    engine()
    assert (
        cli.main(
            [
                "compare",
                "--norm",
                "layer",
                "--placement",
                "pre",
                "--lr",
                "1e-3",
                "--seeds",
                "3+0",
                *TINY,
                "--out",
                str(folder),
            ]
        )
        == 0
    )
    before = (folder / "sweep.json").read_bytes()
    assert cli.main(["compare", "--resume", str(folder), *options]) == 2
    assert words in capsys.readouterr().err and (folder / "sweep.json").read_bytes() == before


# ---- until -----------------------------------------------------------------------------------------------------------


def until(folder, *more):
    return cli.main(["compare", "--norm", "layer,rms", "--placement", "pre", "--lr", "1e-3", "--seeds", "3", *TINY, "--out", str(folder),
                     "--until", "decided", *more])  # fmt: skip


def test_rounds_of_seeds_until_it_is_decided(tmp_path, engine, capsys):
    engine(0.02)
    assert until(tmp_path / "s", "--time-limit", "10m") == 0
    said, sweep = capsys.readouterr().out, Sweep.read(tmp_path / "s")
    assert (
        sweep.sequential
        and len(sweep.looks) >= 1
        and list(sweep.looks) == [3, 5, 7, 10, 15, 22, 33][: len(sweep.looks)]
    )
    assert f"decided with {len(sweep.axes['seed'])} seeds: every cell is told apart from the best" in said
    summary = json.loads((tmp_path / "s/summary.json").read_text())
    assert summary["cells"][1]["behind_best"]["decided"] and summary["wrong"] == 0.05


def test_an_effect_that_is_clear_takes_one_look_and_none_ends_with_the_time(tmp_path, engine, capsys):
    engine(0.5)
    assert until(tmp_path / "clear", "--time-limit", "10m") == 0
    assert Sweep.read(
        tmp_path / "clear"
    ).looks == () and "intervals are 97.5 % ones" in capsys.readouterr().out.replace("\n  ", " ")
    engine(0.0)
    assert until(tmp_path / "none", "--time-limit", "4s") == 0
    assert (
        "seeds; " in (said := capsys.readouterr().out)
        and "are left" in said
        and "decided with" not in said.replace("undecided with", "")
    )
    planted = engine(0.0)
    assert until(tmp_path / "equal", "--time-limit", "10m", "--margin", "0.5") == 0
    assert "or equal to it within 0.5" in capsys.readouterr().out and len(planted.ran) == 6


def test_a_time_limit_saves_and_says_how_to_go_on(tmp_path, engine, capsys, monkeypatch):
    engine()
    clock = iter(range(0, 10_000, 40))
    monkeypatch.setattr("normlab.cli.growing.time.monotonic", lambda: float(next(clock)))
    grid = ["compare", "--norm", "layer,rms", "--placement", "pre", "--lr", "1e-3", "--seeds", "3", *TINY]
    assert cli.main([*grid, "--out", str(tmp_path / "s"), "--time-limit", "100"]) == 1
    said = capsys.readouterr()
    assert "--time-limit 100 is over." in said.err and f"normlab compare --resume {tmp_path / 's'}" in said.err
    assert "Partial answer: " in said.out and " of 6 trials have ended" in said.out


# ---- mistakes that leave nothing behind ------------------------------------------------------------------------------


def test_a_misspelt_name_leaves_no_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text('norm = "rmss"\n')
    (tmp_path / "b.toml").write_text("[model]\ndimm = 32\n")
    (tmp_path / "c.toml").write_text('task = "txet"\n')
    before = sorted(p.name for p in tmp_path.iterdir())
    for options, words in (
        (["train", "--norm", "rmss"], "Did you mean 'rms'"),
        (["train", "--placement", "pots"], "Did you mean 'post'"),
        (["train", "--task", "txet"], "Did you mean 'text'"),
        (["train", "a.toml"], "Did you mean 'rms'"),
        (["train", "b.toml"], "Did you mean 'dim'"),
        (["train", "c.toml"], "Did you mean 'text'"),
        (["train", "--norm", "instance"], "causal"),
        (["compare", "--norm", "rmss"], "Did you mean 'rms'"),
        (["compare", "--task", "txet"], "Did you mean 'text'"),
    ):
        assert cli.main(options) == 2, options
        assert words in capsys.readouterr().err
        assert sorted(p.name for p in tmp_path.iterdir()) == before, options


def test_completion_offers_names_in_lists_too(capsys, tmp_path):
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)

    def offered(*words):
        script = f'source {tmp_path}/script; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _shtab_normlab; echo "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert {"layer", "layer_scale"} & set(offered("normlab", "compare", "--norm", "la")) == {"layer"}
    assert offered("normlab", "compare", "--norm", "layer,rm") == ["layer,rms"]
    assert offered("normlab", "compare", "--norm", "+pow") == ["+power"]
    assert offered("normlab", "train", "--placement", "deepn") == ["deepnorm"]
    assert offered("normlab", "train", "--task", "dig") == ["digits"]
    for shell in ("zsh", "tcsh"):
        assert cli.main(["completion", shell]) == 0
        assert " deepnorm " in capsys.readouterr().out
