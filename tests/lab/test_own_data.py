"""Data and losses of the user's own: repeated, passed over, with random numbers of their own; refusals in words."""

from __future__ import annotations

import builtins

import pytest
import torch
from task_cases import Table, by_hand

from normlab.lab.tasks import OwnTask, own

# ---- the user's own --------------------------------------------------------------------------------------------------


def endless(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(7, (5, 3), generator=generator), torch.randint(5, (5, 3), generator=generator)


def three(seed, split):
    return [f"{split} {seed} {n}" for n in range(3)]


def test_own_batches_go_on_are_repeated_and_are_passed_over():
    calls = []

    def data(seed):
        calls.append(seed)
        return endless(seed)

    task = OwnTask(data)
    straight = [task.batch(0, step, 5) for step in range(1, 8)]
    assert calls == [0]
    assert all(torch.equal(a, b) for a, b in zip(task.batch(0, 7, 5), straight[6], strict=True)) and calls == [0]
    assert torch.equal(task.batch(1, 1, 5)[0], next(endless(1))[0])
    assert torch.equal(task.batch(0, 3, 5)[0], straight[2][0])  # backwards: from the start again
    assert torch.equal(task.batch(0, 6, 5)[0], straight[5][0]) and calls == [0, 1, 0]
    assert torch.equal(OwnTask(endless).batch(0, 5, 5)[0], straight[4][0])  # resumed elsewhere


def test_own_data_that_ends_starts_again_and_knows_its_split():
    task = OwnTask(three)
    assert [task.batch(4, step, 1) for step in range(1, 8)] == [f"train 4 {n}" for n in (0, 1, 2, 0, 1, 2, 0)]
    assert task.held_out(1) == [f"held-out {own.HELD_OUT_SEED} {n}" for n in range(3)]
    assert task.held_out(1, 2) == task.held_out(1)[:2]


def test_own_data_without_a_split_is_held_out_by_its_seed_and_stays_fixed():
    task = OwnTask(endless)
    assert len(task.held_out(5)) == own.MOST_HELD_OUT and len(task.held_out(5, 4)) == 4
    assert torch.equal(task.held_out(5, 4)[0][0], next(endless(own.HELD_OUT_SEED))[0])
    careless = OwnTask(lambda seed: ((torch.rand(2), None) for _ in range(2)))
    assert torch.equal(careless.held_out(1)[0][0], careless.held_out(1)[0][0])
    with pytest.raises(ValueError, match="seed 2147483647 is kept for held-out data"):
        task.batch(own.HELD_OUT_SEED, 1, 5)


def test_own_losses():
    model, task = Table(), OwnTask(endless)
    tokens, targets = batch = task.batch(0, 1, 5)
    want = [loss for row in by_hand(model, tokens, targets) for loss, _ in row]
    assert task.loss(model, batch).item() == pytest.approx(sum(want) / len(want), rel=1e-6)
    assert task.blind is None and task.settings == {} and task.name == "own"

    def square(model, batch):
        return model(batch[0]).square().mean().reshape(1, 1)

    task = OwnTask(endless, square)
    value = task.loss(model, batch)
    assert value.shape == () and value.requires_grad
    scores = task.score(model, batch)
    assert scores.losses.tolist() == [value.item()] and scores.losses.dtype == torch.float64
    assert scores.counts.tolist() == [1] and scores.correct is None and not scores.losses.requires_grad
    assert set(task.sources) == {f"{__name__}:endless", f"{__name__}:test_own_losses.<locals>.square"}


def test_own_functions_that_cannot_serve_are_refused_in_words():
    used_up = iter([1, 2])
    task = OwnTask(lambda seed: used_up)
    assert [task.batch(0, 1, 1), task.batch(0, 2, 1)] == [1, 2]
    for _ in range(2):  # and again when asked again
        with pytest.raises(
            ValueError, match=r"pass [12] of make_data\(0\) yielded no batch; each call must return fresh"
        ):
            task.batch(0, 3, 1)
    with pytest.raises(ValueError, match="yielded no held-out batch"):
        task.held_out(1)
    with pytest.raises(ValueError, match=r"pass 1 of make_data\(6\)"):
        OwnTask(lambda seed: []).batch(6, 1, 1)
    with pytest.raises(TypeError, match="something to iterate over, got int"):
        OwnTask(lambda seed: 3).batch(0, 1, 1)
    with pytest.raises(TypeError, match="must be functions, got str"):
        OwnTask("my.module:data")
    with pytest.raises(TypeError, match="must be functions, got int"):
        OwnTask(endless, 3)
    with pytest.raises(TypeError, match="make_loss must return a tensor with one value, got float"):
        OwnTask(endless, lambda model, batch: 0.5).loss(Table(), None)
    with pytest.raises(TypeError, match="make_loss must return a tensor with one value, got Tensor"):
        OwnTask(endless, lambda model, batch: torch.zeros(2)).loss(Table(), None)
    with pytest.raises(ValueError, match="step must be a whole number"):
        OwnTask(endless).batch(0, 0, 1)


def test_a_function_without_source_is_no_obstacle():
    scope = {}
    builtins.exec("def typed(seed):\n    return [seed]\n", scope)
    task = OwnTask(scope["typed"])
    assert task.sources == {} and task.batch(3, 2, 1) == 3


def test_a_shuffling_loader_has_random_numbers_of_its_own():
    """A DataLoader draws its order from torch's global random numbers; training draws dropout from them too."""
    data = torch.utils.data.TensorDataset(torch.arange(23.0)[:, None], torch.arange(23))

    def make_data(seed):
        return torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)

    def orders(disturb, first=1):
        task = OwnTask(make_data)
        torch.manual_seed(99 if disturb else 1)
        found = []
        for step in range(first, 12):
            found.append(task.batch(3, step, 1)[1].tolist())
            if disturb:
                torch.rand(7)
        return found

    undisturbed = orders(False)
    assert undisturbed == orders(True)
    assert orders(True, first=8) == undisturbed[7:], "a resumed run finds its place"
    assert undisturbed[:5] != undisturbed[5:10], "the second pass has another order"
    state = torch.get_rng_state()
    OwnTask(make_data).batch(3, 2, 1)
    OwnTask(make_data).held_out(1, 2)
    assert torch.equal(state, torch.get_rng_state())
