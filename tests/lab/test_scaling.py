"""Feature scaling: against learners and scalers called by hand, and the directions that must come out."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from normlab.lab import feature_scaling
from normlab.lab.scaling import SCALINGS, skewness


def test_one_result_is_scikit_learn_called_by_hand():
    from sklearn.datasets import load_wine
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import train_test_split

    (found,) = feature_scaling(["wine"], scalings=["standard"], learners=["logistic"], seeds=[3], epochs=20)
    x, y = load_wine(return_X_y=True)
    x, x_new, y, y_new = train_test_split(x, y, test_size=0.3, random_state=3, stratify=y)
    mean, deviation = x.mean(0), x.std(0)  # of the training rows alone
    model = SGDClassifier(
        loss="log_loss", learning_rate="constant", eta0=0.01, alpha=0, max_iter=20, tol=None, random_state=3
    )
    model.fit((x - mean) / deviation, y)
    assert found.accuracy == pytest.approx(model.score((x_new - mean) / deviation, y_new))
    assert found.train_accuracy == pytest.approx(model.score((x - mean) / deviation, y))


def test_descent_and_distances_care_and_a_tree_does_not():
    found = feature_scaling(["wine"], seeds=range(5))
    assert len(found) == 45
    mean = {
        (s, learner): statistics.fmean(r.accuracy for r in found if (r.scaling, r.learner) == (s, learner))
        for s in SCALINGS
        for learner in ("logistic", "neighbours", "tree")
    }
    for learner in ("logistic", "neighbours"):
        assert min(mean["minmax", learner], mean["standard", learner]) > mean["none", learner] + 0.1
    assert mean["none", "tree"] == pytest.approx(mean["standard", "tree"], abs=0.03)


def test_scaling_keeps_the_shape_of_a_distribution():
    skews = {r.scaling: r.skewness for r in feature_scaling(["breast_cancer"], learners=["tree"], seeds=[0])}
    assert skews["none"] > 1
    assert skews["minmax"] == pytest.approx(skews["none"]) == pytest.approx(skews["standard"])
    x = np.random.default_rng(0).exponential(size=(5000, 2))
    assert skewness(x) == pytest.approx(2, abs=0.2) and skewness(np.ones((4, 1))) == 0


def test_unknown_names_are_refused():
    for wrong in ({"datasets": ["wind"]}, {"scalings": ["robust"]}, {"learners": ["svm"]}):
        with pytest.raises(ValueError, match="Known"):
            feature_scaling(**wrong)
    with pytest.raises(ValueError, match="held_out"):
        feature_scaling(held_out=1.0)
