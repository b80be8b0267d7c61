"""A trial that did not train carries its own diagnosis, in both languages; one that trained carries none."""

from __future__ import annotations

from training_cases import small

from normlab import diagnosis
from normlab.lab import train
from normlab.runs import Run, TrialFinding


def test_a_diverged_trial_says_what_its_readings_show(tmp_path):
    result = train(small(lr=1e9, clip=0.0, warmup=0.0, placement="none", steps=40, norm="layer"), tmp_path / "a")
    assert result.outcome in ("diverged", "collapsed") and result.findings
    again = diagnosis.diagnose(tmp_path / "a")
    assert [f.rule for f in result.findings] == [f.rule for f in again.findings]
    first = result.findings[0]
    assert first.en == again.findings[0].verdict and any("一" <= c <= "鿿" for c in first.zh)
    assert any("一" <= c <= "鿿" for c in result.cause_zh) and not any("一" <= c <= "鿿" for c in result.cause)
    held = Run(tmp_path / "a").info["result"]["findings"]
    assert tuple(map(TrialFinding.from_dict, held)) == result.findings


def test_a_trial_that_trained_carries_none(tmp_path):
    result = train(small(steps=60, lr=3e-2, batch_size=16, placement="pre"), tmp_path / "a")
    assert result.outcome == "trained" and result.findings == () and result.cause_zh is None
