"""Every example runs on what it makes up when it is given no data, and training that is stopped goes on."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
ONE_EPOCH = ("--epochs", "1", "--threads", "1")
ARGUMENTS = {
    "mnist_head.py": ("--epochs", "1", "--queries", "100"),
    "language_model.py": ONE_EPOCH,
    "sequential_recommendation.py": ONE_EPOCH,
    "extreme_classification.py": (*ONE_EPOCH, "--labels", "2"),
    "learned_similarity.py": (*ONE_EPOCH, "--methods", "sasrec-cosine,hstu-dot,sasrec-mol-plain,hstu-mol-tied"),
}


def run_example(name, *arguments, folder):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path, tmp_path):
    assert run_example(path.name, *ARGUMENTS.get(path.name, ()), folder=tmp_path)


def test_the_digits_are_classified(tmp_path):
    printed = run_example("mnist_head.py", "--epochs", "1", "--queries", "100", folder=tmp_path)
    rights = [float(line.split("right ")[1].split("%")[0]) for line in printed.splitlines()[1:]]
    assert len(rights) == 3
    assert min(rights) >= 80


def test_every_method_learns_more_of_a_text_than_its_size(tmp_path):
    run_example("language_model.py", "--threads", "1", "--page", "page.md", folder=tmp_path)
    found = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json")]
    perplexities = {run["method"]: run["test"]["perplexity"] for run in found}
    assert len(perplexities) == 6
    # Guessing among all words alike has their number as its perplexity.
    assert max(perplexities.values()) < found[0]["settings"]["words"] / 2
    assert min(perplexities.values()) < found[0]["settings"]["words"] / 6
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    for name in ("full softmax", "uniform", "unigram", "product codes", "residual codes", "weighted"):
        assert sum(name in line.split("|")[1] for line in page.splitlines() if line.startswith("|")) == 1
    assert (tmp_path / "figures" / "language-model.svg").read_text(encoding="utf-8").startswith("<svg")


def test_more_epochs_go_on_from_the_last_one_and_a_finished_run_is_left_alone(tmp_path):
    arguments = ("language_model.py", "--methods", "midx-rq", "--threads", "1", "--epochs")
    run_example(*arguments, "1", folder=tmp_path)
    further = run_example(*arguments, "2", folder=tmp_path)
    assert "goes on at epoch 2" in further
    assert "epoch 1," not in further
    assert "epoch 2" not in run_example(*arguments, "2", folder=tmp_path)
    whole = run_example(*arguments, "2", "--out", "whole", folder=tmp_path)
    assert [line for line in further.splitlines() if "test perplexity" in line] == [
        line for line in whole.splitlines() if "test perplexity" in line
    ]


@pytest.fixture
def shared(monkeypatch):
    """The examples' own package can be imported."""
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("method", ["full", "midx-beyond"])
def test_a_run_stopped_inside_an_epoch_ends_as_one_that_was_not(method, tmp_path, monkeypatch):
    import extreme_classification as example
    from comparing import runs
    from comparing.command import Task

    shown, labels = example.make_up(60, 30, 140, 2)
    parts = [(shown[:100], labels[:100]), (shown[100:120], labels[100:120]), (shown[120:], labels[120:])]
    settings = {"width": 8, "batch": 10, "draws": 5, "rate": 0.1}
    task = Task(
        name="made-up",
        title="Made up",
        settings=settings,
        make=lambda method, seed: example.Learner(parts, 30, 60, settings, method, seed, 4),
        metrics={"precision@1": ("P@1", ".4f")},
        chosen_by="precision@1",
        lower_is_better=False,
    )
    monkeypatch.setattr(runs, "EVERY", 0.0)
    for folder in ("stopped", "whole"):
        (tmp_path / folder).mkdir()
    stopped, whole = (runs.Run(task, method, 3, tmp_path / folder) for folder in ("stopped", "whole"))

    def stop(stage, done, total):
        if stage.endswith("epoch 2") and done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.train(2, stop)
    assert not stopped.finished(2)
    stopped.train(2)
    whole.train(2)
    assert stopped.finished(2)
    ends = [torch.load(run.checkpoint, weights_only=True)["model"] for run in (stopped, whole)]
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=0, atol=0)
    other = Task(**{**vars(task), "settings": settings | {"rate": 0.2}})
    with pytest.raises(SystemExit, match="other settings"):
        runs.Run(other, method, 3, tmp_path / "whole").finished(2)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("encoder", ["SASRec", "HSTU"])
def test_an_encoder_sees_what_came_before_and_nothing_else(encoder):
    from comparing.encoders import PADDING
    from comparing.hstu import HSTU
    from comparing.sasrec import SASRec

    torch.manual_seed(0)
    model = {"SASRec": SASRec, "HSTU": HSTU}[encoder](20, width=8, length=6).eval()
    sequences = torch.tensor([[PADDING, PADDING, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]])
    later = sequences.clone()
    later[:, -1] = 7
    earlier = sequences.clone()
    earlier[:, 2] = 8
    found, after, before = model(sequences), model(later), model(earlier)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[:, :-1], after[:, :-1])
    assert (found[:, -1] - after[:, -1]).abs().max() > 1e-3
    assert (found[:, -1] - before[:, -1]).abs().amax(dim=1).min() > 1e-3


@pytest.mark.usefixtures("shared")
def test_a_kept_back_item_is_ranked_among_those_not_taken():
    import sequential_recommendation as example

    taken = [np.array([0, 1, 2, 3, 4]), np.array([5, 6, 7, 8])]
    learner = example.Recommender(taken, 9, example.SMALL, "full", 0, 4)
    with torch.no_grad():
        learner.model.items.weight.zero_()
    # All scores are equal: nothing is ranked above the item.
    assert set(learner.test().values()) == {1.0}
    assert learner.inputs[0].tolist()[-2:] == [0, 1]
    assert learner.targets[0].tolist()[-2:] == [1, 2]


def test_samplers_are_examined_on_the_trained_model(tmp_path):
    arguments = ("language_model.py", "--methods", "full", "--epochs", "1", "--threads", "1")
    run_example(*arguments, folder=tmp_path)
    printed = run_example(*arguments, "--diagnose", "--page", "page.md", folder=tmp_path)
    distance = {row.split("|")[1].strip(): float(row.split("|")[2]) for row in printed.splitlines()[4:]}
    assert distance["MIDX, weighted"] < distance["MIDX, residual codes"] < distance["uniform"]
    assert distance["two-level, sd-2ls"] < distance["uniform"]
    assert "figures/samplers.svg" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_the_table_and_the_searches_of_learned_similarities_are_written(tmp_path):
    arguments = ("learned_similarity.py", "--threads", "1", "--methods", "sasrec-dot,hstu-mol,sasrec-mol")
    printed = run_example(*arguments, "--page", "page.md", folder=tmp_path)
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
    assert "Learned similarities, made-up users" in printed


@pytest.fixture
def similarities(shared):
    """The example, and what makes a learner of it on a few made-up users."""
    import learned_similarity as example
    from comparing.sequences import make_up

    taken = make_up(120, 60, 6)

    def learner(method, **settings):
        torch.manual_seed(1)
        return example.Learner(taken, 60, example.SMALL | settings, method, 0)

    return example, learner


@pytest.mark.parametrize("method", ["sasrec-mol", "hstu-mol-plain", "hstu-dot", "sasrec-mol-tied"])
def test_a_catalogue_ranks_as_the_model_does(similarities, method):
    _, make = similarities
    learner = make(method)
    for place in range(learner.steps):
        learner.step(0, place)
    catalogue, queries, seen, wanted = learner.searched()
    assert len(queries) == len(learner.taken)
    best = catalogue.top_k(queries, 20, exclude=seen, threads=1)
    places = np.where(best.ids == wanted[:, None], np.arange(20), 20).min(axis=1)
    ranks = np.minimum(learner.ranks(learner.taken, 1).numpy(), 20)
    # Float32 may order two items of almost equal scores otherwise.
    assert np.abs(places - ranks).max() <= 1
    assert (places == ranks).mean() > 0.95


def test_a_tied_mixture_starts_as_a_mean_of_cosines(shared):
    from comparing.tied import TiedMixture

    torch.manual_seed(0)
    tied = TiedMixture(6, components=3, component_dim=6, temperature=0.1).eval()
    vectors = torch.randn(5, 6)
    # Three orthogonal maps of the whole space: each pair of like components has the cosine of the vectors.
    _, weights = tied(vectors, vectors, with_weights=True)
    _, gates = tied.encode_items(vectors)
    like = weights.unflatten(-1, (3, 3)).diagonal(dim1=-2, dim2=-1)
    assert gates is None
    torch.testing.assert_close(like, like[:1, :1, :1].expand_as(like))
    assert like.sum(-1).min() > 0.8
    mixed = tied.mixture.encode_queries(tied.components(vectors))[0]
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    torch.testing.assert_close(torch.einsum("bpd,mpd->bm", mixed, mixed) / 3, cosines)


def test_a_constant_gate_stays_as_it_is(similarities):
    _, make = similarities
    learner = make("sasrec-mol-constant")
    gate = {name: weights.clone() for name, weights in learner.model.similarity.mixture.named_parameters()}
    heads = learner.model.similarity.heads.weight.detach().clone()
    for place in range(3):
        learner.step(0, place)
    for name, weights in learner.model.similarity.mixture.named_parameters():
        assert torch.equal(weights, gate[name])
    assert not torch.equal(learner.model.similarity.heads.weight, heads)


def test_every_weight_learns_at_one_rate(similarities):
    _, make = similarities
    for method in ("sasrec-dot", "hstu-mol", "sasrec-mol-tied"):
        learner = make(method, **{"rate": 0.1, "item rate": 0.2, "gate rate": 0.3})
        rates = {id(weights): group["lr"] for group in learner.optimiser.param_groups for weights in group["params"]}
        assert sum(len(group["params"]) for group in learner.optimiser.param_groups) == len(rates)
        for name, weights in learner.model.named_parameters():
            gate = "gate" in name and method.endswith("tied")
            assert rates[id(weights)] == (0.2 if name == "encoder.items.weight" else 0.3 if gate else 0.1)


def test_only_the_balanced_mixture_is_trained_with_the_balancing_loss(similarities):
    example, make = similarities
    losses, weights = [], None
    for method in ("sasrec-mol", "sasrec-mol-plain"):
        learner = make(method)
        learner.model.eval()
        queries, targets = torch.randn(7, 16, generator=torch.Generator().manual_seed(0)), torch.arange(7)
        with torch.no_grad():
            torch.manual_seed(2)
            losses.append(learner.loss(queries, targets))
            _, weights = learner.model.similarity(
                queries, learner.model.encoder.items(targets[:, None]), with_weights=True
            )
    expected = example.BALANCE * example.mutual_information_loss(weights)
    torch.testing.assert_close(losses[0] - losses[1], expected, rtol=0, atol=1e-6)
    assert expected.abs() > 1e-5


@pytest.mark.parametrize("method", ["sasrec-mol", "sasrec-dot"])
def test_own_negatives_are_scored_as_shared_ones(similarities, method):
    _, make = similarities
    model = make(method).model.eval()
    queries, ids = torch.randn(3, 16), torch.randint(60, (3, 5))
    with torch.no_grad():
        torch.testing.assert_close(model.looked_up()(queries, ids), model.scores(queries).gather(1, ids))


@pytest.mark.parametrize(("negatives", "sampler"), [("shared", "uniform"), ("own", "unigram")])
def test_a_mixture_of_logits_goes_on_where_it_stopped(similarities, negatives, sampler, tmp_path):
    from comparing import runs
    from comparing.command import Task

    _, make = similarities
    task = Task(
        name="made-up",
        title="Made up",
        settings={"sampler": sampler},
        make=lambda method, seed: make(method, negatives=negatives, sampler=sampler, batch=40),
        metrics={"mrr": ("MRR", ".4f")},
        chosen_by="mrr",
        lower_is_better=False,
        methods={"hstu-mol": "HSTU"},
    )
    ends = []
    for name, epochs in (("stopped", (1, 2)), ("whole", (2,))):
        (tmp_path / name).mkdir()
        for count in epochs:
            runs.Run(task, "hstu-mol", 0, tmp_path / name).train(count)
        ends.append(json.loads((tmp_path / name / "made-up-hstu-mol-0.json").read_text())["test"])
    assert ends[0] == ends[1]
