"""Feature scaling outside of networks: which learners care whether their inputs are scaled, on scikit-learn's own data.

"Normalization" in a textbook on data means this: columns brought to 0-1 or to mean 0 and deviation 1, once, before a model sees
them. Gradient descent and distances depend on the units of a column, a tree does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import need, require, unknown

DATASETS = ("wine", "breast_cancer", "iris", "digits")
SCALINGS = ("none", "minmax", "standard")
LEARNERS = ("logistic", "neighbours", "tree")


@dataclass(frozen=True, kw_only=True)
class ScalingResult:
    """One learner on one split of one dataset, its columns scaled in one way."""

    dataset: str
    scaling: str
    learner: str
    seed: int
    accuracy: float  # on held-out rows
    train_accuracy: float
    skewness: float  # mean over columns of the training rows as they were given to the learner


def feature_scaling(
    datasets: Sequence[str] = ("wine", "breast_cancer"),
    *,
    scalings: Sequence[str] = SCALINGS,
    learners: Sequence[str] = LEARNERS,
    seeds: Sequence[int] = range(10),
    held_out: float = 0.3,
    epochs: int = 50,
) -> list[ScalingResult]:
    """Held-out accuracy of every learner on every dataset under every scaling, split and started by ``seeds``.

    none        columns in their own units
    minmax      (x - min) / (max - min), from the training rows
    standard    (x - mean) / deviation, from the training rows
    logistic    logistic regression by stochastic gradient descent, ``epochs`` passes at the constant rate 0.01
    neighbours  the 5 nearest training rows decide
    tree        a decision tree

    The seed decides the stratified split, the order of the rows and the tree's draws; all scalings see the same. Needs
    scikit-learn: ``pip install 'normlab[digits]'``.
    """
    require("feature scaling", "digits", "sklearn")
    for what, values, known in (
        ("dataset", datasets, DATASETS),
        ("scaling", scalings, SCALINGS),
        ("learner", learners, LEARNERS),
    ):
        for value in values:
            if value not in known:
                raise ValueError(unknown(what, value, known))
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is the share of rows that judge and must lie in (0, 1), got {held_out!r}")
    split = need("feature scaling", "digits", "sklearn.model_selection").train_test_split
    found = []
    for dataset in datasets:
        data = getattr(need("feature scaling", "digits", "sklearn.datasets"), f"load_{dataset}")()
        for seed in seeds:
            x, x_new, y, y_new = split(
                data.data, data.target, test_size=held_out, random_state=seed, stratify=data.target
            )
            for scaling in scalings:
                scale = _scaler(scaling)
                fitted, judged = (x, x_new) if scale is None else (scale.fit_transform(x), scale.transform(x_new))
                for learner in learners:
                    model = _learner(learner, seed, epochs)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # that descent has not converged is the point
                        model.fit(fitted, y)
                    found.append(ScalingResult(
                        dataset=dataset, scaling=scaling, learner=learner, seed=seed,
                        accuracy=float(model.score(judged, y_new)), train_accuracy=float(model.score(fitted, y)),
                        skewness=skewness(fitted),
                    ))  # fmt: skip
    return found


def skewness(columns: Any) -> float:
    """Mean over columns of E((x - mean) / deviation)^3; a column without spread counts as 0."""
    centered = columns - columns.mean(0)
    deviation = columns.std(0)
    deviation = deviation + (deviation == 0)
    return float(((centered / deviation) ** 3).mean(0).mean())


def _scaler(scaling: str) -> Any:
    room = need("feature scaling", "digits", "sklearn.preprocessing")
    return {"none": lambda: None, "minmax": room.MinMaxScaler, "standard": room.StandardScaler}[scaling]()


def _learner(learner: str, seed: int, epochs: int) -> Any:
    if learner == "logistic":
        return need("feature scaling", "digits", "sklearn.linear_model").SGDClassifier(
            loss="log_loss",
            learning_rate="constant",
            eta0=0.01,
            alpha=0.0,
            max_iter=epochs,
            tol=None,
            random_state=seed,
        )
    if learner == "neighbours":
        return need("feature scaling", "digits", "sklearn.neighbors").KNeighborsClassifier(n_neighbors=5)
    return need("feature scaling", "digits", "sklearn.tree").DecisionTreeClassifier(random_state=seed)
