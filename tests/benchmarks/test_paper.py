"""Each tool draws from the distribution it should, and the paper's tables are complete."""

import numpy as np
import pytest

import softindex
from benchmarks import paper, published
from benchmarks.paper_measure import run_bench
from benchmarks.paper_tables import kl_table, latency_table
from benchmarks.peers import FaissTopK, GumbelMax, NumpyExact, NumpyTuned, NumpyTwoLevel, covariances, torch_draw
from benchmarks.published import PAPER_KL, PAPER_LATENCY, PAPER_NAMES
from benchmarks.tables import Table, place
from softindex.testing import chi_square_score

TEMPERATURE = 0.5
DRAWS = 20_000


def made():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, 4)).astype(np.float32)
    index = softindex.build(vectors, clusters=6, dispersion="full")
    return vectors, index, rng.standard_normal(4).astype(np.float32)


def softmax(vectors, query):
    logits = vectors.astype(float) @ query.astype(float) / TEMPERATURE
    return np.exp(logits - np.logaddexp.reduce(logits))


def flat_search(vectors):
    faiss = pytest.importorskip("faiss")
    search = faiss.IndexFlatIP(vectors.shape[1])
    search.add(vectors)
    return search


def counts_of(draw, query, n):
    drawn = [draw(query, TEMPERATURE) for _ in range(DRAWS)]
    rows = [one[0] if isinstance(one, tuple) else one for one in drawn]
    return np.bincount(rows, minlength=n)


def test_the_exact_peers_draw_from_the_softmax():
    vectors, _, query = made()
    expected = softmax(vectors, query)
    for draw in (NumpyExact(vectors).draw, GumbelMax(vectors, flat_search(vectors)).draw, torch_draw(vectors)):
        assert chi_square_score(counts_of(draw, query, len(vectors)), expected) < 4.5


def test_gumbel_max_is_exact_however_small_its_head():
    vectors, _, query = made()
    peer = GumbelMax(vectors, flat_search(vectors))
    for peer.k in (1, 3, 60):
        assert chi_square_score(counts_of(peer.draw, query, len(vectors)), softmax(vectors, query)) < 4.5


@pytest.mark.parametrize("method", ["2ls", "s-2ls", "sd-2ls"])
def test_the_two_level_peer_has_our_published_law(method):
    _, index, query = made()
    forms = covariances(index.items) if method == "sd-2ls" else None
    peer = NumpyTwoLevel(index.items, sizes=method != "2ls", covariances=forms)
    drawn = dict(peer.draw(query, TEMPERATURE) for _ in range(3000))
    ids = index.ids[np.array(list(drawn))]
    law = index.log_prob(query, ids, temperature=TEMPERATURE, method=method, probes=0)
    np.testing.assert_allclose(list(drawn.values()), law, atol=2e-3)


def test_the_tuned_peer_draws_from_s_2ls():
    _, index, query = made()
    counts = counts_of(NumpyTuned(index.items).draw, query, len(index))
    law = np.exp(index.log_prob(query, index.ids, temperature=TEMPERATURE, method="s-2ls", probes=0))
    assert chi_square_score(counts, law) < 4.5


def test_the_truncated_peer_draws_from_the_softmax_of_the_best():
    vectors, _, query = made()
    best = np.argsort(-(vectors @ query))[:9]
    expected = np.zeros(len(vectors))
    expected[best] = softmax(vectors[best], query)
    counts = counts_of(FaissTopK(flat_search(vectors), 9).draw, query, len(vectors))
    assert counts[expected == 0].sum() == 0
    assert chi_square_score(counts[best], expected[best]) < 4.5


def test_the_tables_hold_every_set_and_temperature():
    found = list(run_bench(["synth-balanced", "synth-unbalanced"], queries=20, timed=6, clusters=30, items=2000))
    first, second = kl_table(found, 30), latency_table(found, 6, 30)
    assert len(first.rows) == 6
    assert {len(row) for row in first.rows} == {len(first.columns)}
    assert {len(row) for row in second.rows} == {len(second.columns)} == {3}
    for one in found:
        assert one.items == 2000
        assert 0 < one.head_recall <= 1
        assert one.kl["exact", 0.1][0] < 1e-9
        # A softmax of 1000 of 2000 items: what faiss takes for the best holds no more than the best do.
        assert one.kl["faiss top-1000", 0.2][0] >= one.kl["top-k", 0.2][0] - 1e-9
        assert min(one.milliseconds.values()) > 0


def test_the_papers_figures_have_a_place():
    assert all(len(values) == len(PAPER_NAMES) - 1 for values in PAPER_KL.values())
    assert all(len(values) == len(PAPER_NAMES) for values in PAPER_LATENCY.values())


def test_queries_that_are_held_out_are_no_items():
    (found,) = run_bench(["synth-balanced"], queries=20, timed=0, clusters=30, items=2000, held_out=True)
    assert found.items == 1980
    assert found.milliseconds == {}


def test_the_papers_figures_stand_beside_sets_of_the_same_size_only(monkeypatch):
    found = list(run_bench(["synth-balanced"], queries=10, timed=3, clusters=1024, items=3000))
    assert "paper" not in kl_table(found, 1024).title
    assert "paper" not in latency_table(found, 3, 1024).title
    monkeypatch.setitem(published.PAPER_ITEMS, "synth-balanced", 3000)
    assert " / 0.60 |" in kl_table(found, 1024).markdown()
    assert "paper" in latency_table(found, 3, 1024).title


def test_a_section_is_replaced_and_the_rest_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- one: begin -->\nold\n<!-- one: end -->\nafter\n", encoding="utf-8")
    place(page, "one", Table("T", ["a"], [["1"]]).markdown())
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- one: begin -->\n**T**")
    assert text.endswith("| 1 |\n<!-- one: end -->\nafter\n")
    with pytest.raises(softindex.InputError, match="no place for the section two"):
        place(page, "two", "")
    place(tmp_path / "new.md", "two", "body")
    assert "body" in (tmp_path / "new.md").read_text(encoding="utf-8")


def test_only_full_covariances_are_called_published():
    (found,) = run_bench(["synth-balanced"], queries=10, timed=3, clusters=20, items=2000)
    for names in (kl_table([found], 20).columns, [row[0] for row in latency_table([found], 3, 20).rows]):
        assert [name for name in names if "published" in name] == ["sd-2ls, published (full covariances)"]
        assert "sd-2ls, rank 8, no probes" in names


def test_the_command_prints_the_tables_and_writes_them_between_the_marks(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- paper-held-out: begin -->\n<!-- paper-held-out: end -->\nafter\n", encoding="utf-8")
    small = ["--queries", "10", "--timed", "0", "--clusters", "20", "--items", "500"]
    paper.main(["synth-balanced", *small, "--held-out", "--markdown", str(page), "--threads", "1"])
    text = page.read_text(encoding="utf-8")
    command = "python -m benchmarks paper synth-balanced --queries 10 --timed 0 --clusters 20 --items 500 --held-out"
    assert f"Measured with `{command}` on: " in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "queries held out" in text
    assert "KL(law || softmax)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["nowhere"], "no data set named"),
        (["--queries", "0"], "queries is 0"),
        (["--markdown", "/no/page.md"], "cannot"),
        (["synth-balanced", "--items", "5"], "too few for 1024 clusters"),
    ],
)
def test_bad_input_is_refused_before_the_long_work(asked, sentence, monkeypatch):
    monkeypatch.setattr(paper, "run_bench", lambda *_, **__: pytest.fail("the work has begun"))
    with pytest.raises(softindex.InputError, match=sentence):
        paper.main(asked)
