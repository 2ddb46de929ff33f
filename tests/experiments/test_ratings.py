"""Files of ratings with times: what is read, and that nothing a user did later is used to rank what came before."""

import gzip
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments import learned_similarity
from experiments.harness.encoders import ITEM, PADDING, TIME, USER
from experiments.harness.hstu import BUCKET, BUCKETS, HSTU, time_buckets
from experiments.harness.ratings import is_ratings, read_ratings
from experiments.harness.sequences import read

USERS, ITEMS = 40, 30
SIZES = {"width": 8, "blocks": 1, "length": 6, "components": 2, "query components": 3, "component width": 4, "batch": 4}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of ratings in random order: users from 5 in steps of 3, items from 100, and a time of a few days."""
    rng = np.random.default_rng(0)
    rows = [
        (5 + 3 * user, 100 + item, rng.integers(1, 6), 880_000_000 + rng.integers(300_000))
        for user in range(USERS)
        for item in rng.permutation(ITEMS)[: rng.integers(6, 15)]
    ]
    rng.shuffle(rows)
    path = tmp_path_factory.mktemp("ratings") / "ratings.tsv.gz"
    with gzip.open(path, "wt") as file:
        file.writelines("\t".join(map(str, row)) + "\n" for row in rows)
    return path


@pytest.fixture(scope="module")
def make(path):
    """A function that creates a trainer of a method for the file."""
    task = learned_similarity.task_of(SimpleNamespace(data=path))
    events, settings = read_ratings(path), task.settings | SIZES

    def trainer(method):
        torch.manual_seed(0)
        return learned_similarity.SimilarityTrainer(read(path), settings, method, 0, events)

    return trainer


def test_ratings_become_events_of_users_in_order_of_time(path):
    events = read_ratings(path)
    assert len(events) == USERS
    for user, sequence in enumerate(events):
        assert (sequence[:, USER] == user).all()
        assert (np.diff(sequence[:, TIME]) >= 0).all()
    with gzip.open(path, "rt") as lines:
        rows = [[int(cell) for cell in line.split("\t")] for line in lines]
    numbers = np.unique([row[1] for row in rows])
    found = {(5 + 3 * user, int(numbers[item]), time) for sequence in events for item, time, user in sequence.tolist()}
    assert found == {(user, item, time) for user, item, _, time in rows}
    assert all(np.array_equal(items, sequence[:, ITEM]) for items, sequence in zip(read(path), events, strict=True))


def test_ratings_of_one_second_keep_the_order_of_the_file_and_the_first_of_an_item_counts(tmp_path):
    path = tmp_path / "ratings.tsv"
    path.write_text("1\t9\t4\t50\n1\t7\t4.5\t50\n1\t8\t1\t50\n1\t7\t3\t60\n1\t6\t3\t40\n")
    (events,) = read_ratings(path)
    assert events[:, ITEM].tolist() == [0, 3, 1, 2]
    assert events[:, TIME].tolist() == [40, 50, 50, 50]


def test_files_of_sequences_and_of_ratings_are_told_apart(path, tmp_path):
    sequences = tmp_path / "sequences.txt"
    sequences.write_text("1 4 5 6\n2 5 6 4\n")
    assert is_ratings(path)
    assert not is_ratings(sequences)
    assert [items.tolist() for items in read(sequences)] == [[0, 1, 2], [1, 2, 0]]


def test_time_buckets_are_steps_of_the_logarithm_of_the_time_between_events():
    assert time_buckets(torch.tensor([0, 1, -1])).tolist() == [0, 0, 0]
    edges = torch.arange(1, 60)
    seconds = torch.exp(BUCKET * edges.double())
    assert time_buckets(1.0001 * seconds).tolist() == edges.tolist()
    assert time_buckets(0.9999 * seconds).tolist() == (edges - 1).tolist()
    assert time_buckets(-1.0001 * seconds).tolist() == edges.tolist()
    assert time_buckets(torch.tensor([1e300], dtype=torch.float64)).item() == BUCKETS


def test_the_queries_of_hstu_depend_on_the_time_between_earlier_events_only():
    torch.manual_seed(0)
    model = HSTU(20, width=8, length=5, timed=True).eval()
    for block in model.blocks:
        block.recency.data.normal_(std=2.0)
    items, times = torch.tensor([[PADDING, 3, 4, 5, 6]]), torch.tensor([[PADDING, 10, 20, 500, 9000]])
    events = torch.stack([items, times, torch.zeros_like(items)], dim=-1)
    later, moved, nearer = events.clone(), events.clone(), events.clone()
    later[:, -1, TIME] = 10**6
    moved[:, 1:, TIME] += 10**8
    nearer[:, 3, TIME] = 25
    found = model(events)
    torch.testing.assert_close(model(later)[:, :-1], found[:, :-1])
    torch.testing.assert_close(model(moved)[:, 1:], found[:, 1:])
    assert (model(later) - found)[:, -1].abs().max() > 1e-3
    assert (model(nearer) - found)[:, 3].abs().max() > 1e-3
    torch.testing.assert_close(model(nearer)[:, 1:3], found[:, 1:3])


def test_training_never_sees_the_last_two_events_of_a_user(make):
    trainer = make("hstu-mol-users")
    learned = {tuple(event) for event in trainer.inputs.flatten(0, 1).tolist() if event[ITEM] != PADDING}
    for items, events in zip(trainer.taken, trainer.events, strict=True):
        assert {tuple(event) for event in events[:-2].tolist()[:-1]} <= learned
        assert not {tuple(event) for event in events[-2:].tolist()} & learned
        assert events[:-2, TIME].max() <= events[-2, TIME] <= events[-1, TIME]
        assert np.array_equal(items, events[:, ITEM])
    counts = np.bincount(np.concatenate([items[1:-2] for items in trainer.taken]), minlength=ITEMS)
    assert trainer.frequencies.tolist() == counts.tolist()


@pytest.mark.parametrize("method", ["hstu-mol-users", "sasrec-dot"])
def test_a_rank_does_not_depend_on_the_event_to_predict_or_on_later_ones(make, method):
    trainer = make(method)
    for place in range(5):
        trainer.step(0, place)
    everyone = range(len(trainer.taken))
    for back in (1, 2):
        right = trainer.ranks(everyone, back)
        for events in trainer.events:
            events[-back:, TIME] += 10**7
            events[-back:, ITEM] = 0
        assert torch.equal(trainer.ranks(everyone, back), right)


def test_a_user_component_makes_the_scores_depend_on_the_user(make):
    alone, known = make("sasrec-mol"), make("sasrec-mol-users")
    for trainer, differs in ((alone, False), (known, True)):
        trainer.model.eval()
        sequences = trainer.inputs[-3:].clone()
        others = sequences.clone()
        others[..., USER] = (others[..., USER] + 1) % USERS
        with torch.no_grad():
            assert torch.equal(trainer.scores(sequences), trainer.scores(others)) != differs
    before = known.model.similarity.user_table.weight.detach().clone()
    known.step(0, 0)
    assert not torch.equal(known.model.similarity.user_table.weight, before)


def test_a_step_learns_from_as_many_targets_as_the_settings_say(make, monkeypatch):
    trainer, seen = make("sasrec-dot"), []
    trainer.most = 7
    loss = trainer.loss
    monkeypatch.setattr(trainer, "loss", lambda queries, targets: seen.append(targets) or loss(queries, targets))
    trainer.step(0, 0)
    _, targets = trainer.examples(0, 0)
    assert len(seen[0]) == 7
    assert set(seen[0].tolist()) <= set(targets.flatten().tolist()) - {PADDING}
