"""The experiment with learned similarities trains what it names, and its index ranks as the model does."""

import json

import numpy as np
import pytest
import torch
from running import run_experiment

from experiments import learned_similarity
from experiments.harness import runs
from experiments.harness.command import Task
from experiments.harness.sequences import synthetic
from experiments.harness.tied import TiedMixture


def test_the_table_and_the_searches_of_learned_similarities_are_written(tmp_path):
    arguments = ("learned_similarity", "--threads", "1", "--methods", "sasrec-dot,hstu-mol,sasrec-mol")
    printed = run_experiment(*arguments, "--page", "page.md", folder=tmp_path)
    found = {run["method"]: run for run in map(json.loads, (p.read_text() for p in tmp_path.glob("runs/*.json")))}
    assert set(found) == {"sasrec-dot", "sasrec-mol", "hstu-mol"}
    for run in found.values():
        # Guessing finds one in thirty.
        assert run["test"]["hr@10"] > 0.08
        assert run["test"]["hr@1"] <= run["test"]["mrr"] <= run["test"]["hr@200"]
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "figures/learned-similarity.svg" in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert {row[0] for row in rows} >= {"SASRec, dot product", "SASRec, mixture of logits", "HSTU, mixture of logits"}
    searched = {tuple(row[:2]): row[2:] for row in rows if len(row) == 6}
    assert searched["brute-force", ""][0] == searched["two-pass", ""][0] == "1.0000"
    assert searched["brute-force", ""][1] == searched["two-pass", ""][1]
    assert searched["brute-force", ""][2] == searched["two-pass", ""][2] == "100.0%"
    assert float(searched["average", "100"][0]) <= float(searched["average", "200"][0]) <= 1
    assert "SASRec, mixture of logits: 300 items" in printed
    assert "Learned similarities, synthetic users" in printed


@pytest.fixture
def make():
    """A function that creates a trainer for a few synthetic users."""
    taken = synthetic(120, 60, 6)

    def trainer(method, **settings):
        torch.manual_seed(1)
        settings = {"users": 120, "items": 60} | learned_similarity.SMALL | settings
        return learned_similarity.SimilarityTrainer(taken, settings, method, 0)

    return trainer


@pytest.mark.parametrize(
    "method", ["sasrec-mol", "hstu-mol-plain", "hstu-dot", "sasrec-mol-tied", "sasrec-dot-equal", "hstu-cosine-equal"]
)
def test_an_index_ranks_as_the_model_does(make, method):
    trainer = make(method)
    for place in range(trainer.steps):
        trainer.step(0, place)
    index, queries, seen, wanted = trainer.searchable()
    assert len(queries) == len(trainer.taken)
    best = index.top_k(queries, 20, exclude=seen, threads=1)
    places = np.where(best.ids == wanted[:, None], np.arange(20), 20).min(axis=1)
    ranks = np.minimum(trainer.ranks(range(len(trainer.taken)), 1).numpy(), 20)
    # Float32 may order two items of almost equal scores otherwise.
    assert np.abs(places - ranks).max() <= 1
    assert (places == ranks).mean() > 0.95


def test_a_tied_mixture_starts_as_a_mean_of_cosines():
    torch.manual_seed(0)
    tied = TiedMixture(6, components=3, component_dim=6, temperature=0.1).eval()
    vectors = torch.randn(5, 6)
    # Three orthogonal maps of the full space: each pair of equal components has the cosine of the vectors.
    _, weights = tied(vectors, vectors, with_weights=True)
    _, gates = tied.encode_items(vectors)
    like = weights.unflatten(-1, (3, 3)).diagonal(dim1=-2, dim2=-1)
    assert gates is None
    torch.testing.assert_close(like, like[:1, :1, :1].expand_as(like))
    assert like.sum(-1).min() > 0.8
    mixed = tied.mixture.encode_queries(tied.components(vectors))[0]
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    torch.testing.assert_close(torch.einsum("bpd,mpd->bm", mixed, mixed) / 3, cosines)


def test_a_constant_gate_stays_as_it_is(make):
    trainer = make("sasrec-mol-constant")
    gate = {name: weights.clone() for name, weights in trainer.model.similarity.mixture.named_parameters()}
    heads = trainer.model.similarity.heads.weight.detach().clone()
    for place in range(3):
        trainer.step(0, place)
    for name, weights in trainer.model.similarity.mixture.named_parameters():
        assert torch.equal(weights, gate[name])
    assert not torch.equal(trainer.model.similarity.heads.weight, heads)


def test_every_weight_learns_at_one_rate(make):
    for method in ("sasrec-dot", "hstu-mol", "sasrec-mol-tied"):
        trainer = make(method, **{"rate": 0.1, "item rate": 0.2, "gate rate": 0.3})
        rates = {id(weights): group["lr"] for group in trainer.optimiser.param_groups for weights in group["params"]}
        assert sum(len(group["params"]) for group in trainer.optimiser.param_groups) == len(rates)
        for name, weights in trainer.model.named_parameters():
            gate = "gate" in name and method.endswith("tied")
            assert rates[id(weights)] == (0.2 if name == "encoder.items.weight" else 0.3 if gate else 0.1)


def test_only_the_balanced_mixture_is_trained_with_the_balancing_loss(make):
    losses, weights = [], None
    for method in ("sasrec-mol", "sasrec-mol-plain"):
        trainer = make(method)
        trainer.model.eval()
        queries, targets = torch.randn(7, 16, generator=torch.Generator().manual_seed(0)), torch.arange(7)
        with torch.no_grad():
            torch.manual_seed(2)
            losses.append(trainer.loss(queries, targets))
            _, weights = trainer.model.similarity(
                queries, trainer.model.encoder.items(targets[:, None]), with_weights=True
            )
    expected = learned_similarity.BALANCE * learned_similarity.mutual_information_loss(weights)
    torch.testing.assert_close(losses[0] - losses[1], expected, rtol=0, atol=1e-6)
    assert expected.abs() > 1e-5


@pytest.mark.parametrize("method", ["sasrec-mol", "sasrec-dot", "sasrec-cosine", "sasrec-cosine-equal"])
def test_own_negatives_are_scored_as_shared_ones(make, method):
    model = make(method).model.eval()
    queries, ids = torch.randn(3, 16), torch.randint(60, (3, 5))
    with torch.no_grad():
        torch.testing.assert_close(model.pair_scorer()(queries, ids), model.scores(queries).gather(1, ids))


@pytest.mark.parametrize(("negatives", "sampler"), [("shared", "uniform"), ("own", "unigram")])
def test_an_interrupted_mixture_of_logits_continues(make, negatives, sampler, tmp_path):
    task = Task(
        name="synthetic",
        title="Synthetic",
        settings={"sampler": sampler},
        make=lambda method, seed: make(method, negatives=negatives, sampler=sampler, batch=40),
        metrics={"mrr": ("MRR", ".4f")},
        chosen_by="mrr",
        lower_is_better=False,
        methods={"hstu-mol": "HSTU"},
    )
    ends = []
    for name, epochs in (("interrupted", (1, 2)), ("uninterrupted", (2,))):
        (tmp_path / name).mkdir()
        for count in epochs:
            runs.Run(task, "hstu-mol", 0, tmp_path / name).train(count)
        ends.append(json.loads((tmp_path / name / "synthetic-hstu-mol-0.json").read_text())["test"])
    assert ends[0] == ends[1]
