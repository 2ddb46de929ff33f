"""A log keeps what was drawn, and replaying it gives the same propensities to the last bit."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_logs import log_of, made_index, made_queries

import softindex
from softindex import decisions
from softindex.laws import METHODS

sys.path.append(str(Path(__file__).parent.parent / "service"))
OPTIONS = [
    {},
    {"replace": False},
    {"exclude": [1, 2]},
    {"exclude": [[1, 2]] * 15 + [None] * 15 + [[3]] * 10, "replace": False},
    {"allow": [1, 2, 3, 4, 5, 6], "replace": False},
    {"top_p": 0.95},
    {"probes": 0},
    {"tolerance": 0.5, "replace": False, "exclude": [7]},
    {"temperature": np.geomspace(0.3, 3.0, 40)},
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_replay_finds_every_propensity_bit_for_bit(method, number, tmp_path):
    options = {"temperature": 1.0, **OPTIONS[number], "method": method}
    if method in ("exact", "certified", "top-k") or "hierarchical" in method:
        options.pop("probes", None)
    index, queries = made_index(200), made_queries(40)
    log, _ = log_of(tmp_path / "log", index, queries, 3, **options)
    index.save(tmp_path / "index")
    for one in (index, softindex.load(tmp_path / "index")):
        found = decisions.replay(log, one)
        assert found.intact, found
        assert found.compared == 40


def test_replay_names_the_rows_that_differ(tmp_path):
    index, queries = made_index(200), made_queries(40)
    log, _ = log_of(tmp_path, index, queries, 3)
    vectors = index.vectors(np.arange(200)).copy()
    vectors[17] += 0.01
    found = decisions.replay(log, softindex.build(vectors, clusters=6))
    assert not found.intact
    assert found.differing > 20
    assert len(found.examples) == found.differing
    assert 0 < found.largest_difference < 1


def test_calls_with_copies_of_a_query_replay(tmp_path):
    index = made_index(200)
    queries = np.tile(made_queries(1), (20, 1))
    log, draws = log_of(tmp_path, index, queries, 3, method="certified")
    assert len(np.unique(draws.ids[:, 0])) > 1
    assert decisions.replay(log, index).intact


def test_replay_of_a_catalogue_skips_other_states(tmp_path):
    queries = made_queries(10)
    log = decisions.Log(tmp_path / "log")
    vectors = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    with softindex.open(tmp_path / "live", create=vectors, ids=list(range(50))) as live:
        for number in range(3):
            snapshot = live.snapshot()
            log.append(queries, snapshot.sample(queries, 2, temperature=1.0), temperature=1.0)
            live.upsert([100 + number], queries[:1])
        found = decisions.replay(log, snapshot)
    assert (found.compared, found.differing, found.skipped) == (10, 0, {"another snapshot": 20})


def test_adaptive_softmax_and_learned_similarities_replay(tmp_path):
    rng = np.random.default_rng(0)
    layer = softindex.AdaptiveSoftmax(rng.standard_normal((300, 12)).astype(np.float32))
    queries = rng.standard_normal((9, 12)).astype(np.float32)
    for number, options in enumerate(({}, {"method": "top-k", "k": 5}, {"top_p": 0.5})):
        log, _ = log_of(tmp_path / str(number), layer, queries, 4, **options)
        assert decisions.replay(log, layer).intact


def test_rewards_come_later_and_add_up(tmp_path):
    index, queries = made_index(), made_queries(5)
    draws = index.sample(queries, 3, temperature=1.0, replace=False, seed=0)
    with decisions.Log(tmp_path) as log:
        names = log.append(queries, draws, temperature=1.0, replace=False)
    later = decisions.Log(tmp_path)
    later.add_rewards([names[1], names[1]], [1.0, 0.5], position=[0, 2])
    later.add_rewards([names[1], names[4]], [0.25, 2.0], position=[2, 1])
    later.add_rewards([names[2]], [4.0])
    later.add_rewards(["nobody"], [9.0])
    later.flush()
    (batch,) = log.batches()
    expected = np.zeros((5, 3))
    expected[1], expected[4], expected[2, 2] = [1.0, 0.0, 0.75], [0.0, 2.0, 0.0], 4.0
    np.testing.assert_array_equal(batch.rewards, expected)
    np.testing.assert_array_equal(batch.rewarded, [False, True, True, False, True])
    log.add_rewards(names, np.ones((5, 3)))
    (batch,) = log.batches()
    np.testing.assert_array_equal(batch.rewards, expected + 1)


def test_a_log_is_read_in_batches_of_one_law_in_its_order(tmp_path):
    index, queries = made_index(), made_queries(50)
    log = decisions.Log(tmp_path)
    drawn = []
    for seed in range(6):
        options = {"temperature": 1.0 + seed, "method": ("sd-2ls", "exact")[seed % 2]}
        draws = index.sample(queries, 2, seed=seed, **options)
        log.append(queries, draws, **options)
        drawn.append(draws.ids)
    for rows in (7, 64, 10_000):
        batches = list(log.batches(rows))
        assert max(map(len, batches)) <= rows
        assert all(len({batch.options["method"]}) == 1 for batch in batches)
        numbers = np.concatenate([batch.rows for batch in batches])
        ids = np.concatenate([batch.ids for batch in batches])
        np.testing.assert_array_equal(np.sort(numbers), np.arange(300))
        np.testing.assert_array_equal(ids[np.argsort(numbers)], np.concatenate(drawn))
    assert len(log) == 300


def test_files_are_only_added(tmp_path):
    index, queries = made_index(), made_queries(3)
    seen = {}
    for _ in range(4):
        with decisions.Log(tmp_path) as log:
            names = log.append(queries, index.sample(queries, temperature=1.0), temperature=1.0)
            log.add_rewards(names, np.ones(3))
        now = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
        assert seen.items() <= now.items()
        assert len(now) == len(seen) + 2
        seen = now


def test_string_ids_and_one_query(tmp_path):
    index = softindex.build(made_queries(40), ids=[f"item {row}" for row in range(40)])
    log = decisions.Log(tmp_path)
    query = made_queries(1)[0]
    options = {"temperature": 0.5, "exclude": ["item 3"], "replace": False}
    log.append(query, index.sample(query, 4, seed=2**63, **options), **options)
    log.append(query, index.sample(query, 4, temperature=0.5), temperature=0.5)
    assert decisions.replay(log, index).intact
    assert [batch.exclude for batch in log.batches()] == [[["item 3"]], None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": made_queries(4)}, "4 queries but 3 rows"),
        ({"colour": 1}, "'colour' is not an option"),
        ({"exclude": [[1], [2]]}, "2 entries for 3 queries"),
        ({"exclude": np.ones(30, bool)}, "is a mask"),
        ({"temperature": [1.0, 2.0]}, "one per query"),
    ],
)
def test_what_does_not_fit_the_draws_is_refused(change, message, tmp_path):
    index, queries = made_index(), made_queries(3)
    asked = {"queries": queries, "draws": index.sample(queries, temperature=1.0), "temperature": 1.0, **change}
    log = decisions.Log(tmp_path)
    with pytest.raises(softindex.InputError, match=message):
        log.append(asked.pop("queries"), asked.pop("draws"), **asked)
    assert len(log) == 0


def test_rewards_that_do_not_fit_are_refused(tmp_path):
    log = decisions.Log(tmp_path)
    with pytest.raises(softindex.InputError, match="3 decision ids for 2 rewards"):
        log.add_rewards(["a", "b", "c"], [1.0, 2.0])
    with pytest.raises(softindex.InputError, match="not a finite number"):
        log.add_rewards(["a"], [np.nan])


def test_the_log_of_a_server_replays_in_process_and_through_the_service(tmp_path):
    servers = pytest.importorskip("servers")
    vectors = servers.items(500)
    index = softindex.build(vectors)
    index.save(tmp_path / "index")
    queries = servers.items(5, seed=4)
    folder = tmp_path / "log"
    served = servers.running(tmp_path / "index", log_decisions=str(folder))
    with served as server, softindex.Client(server.url) as client:
        for options in ({}, {"replace": False, "exclude": [3]}, {"method": "certified"}, {"top_p": 0.5}):
            client.sample(queries, 4, temperature=0.3, **options)
        client.sample(queries, 4, temperature=np.linspace(0.1, 1.0, 5), replace=False)
    log = decisions.Log(folder)
    assert len(log) == 25
    assert decisions.replay(log, softindex.load(tmp_path / "index")).intact
    with servers.running(tmp_path / "index") as server, softindex.Client(server.url) as client:
        assert decisions.replay(log, client).intact
    names = [name.as_py() for batch in log.batches() for name in batch.decision_ids]
    assert len(set(names)) == 25
    log.add_rewards(names, np.ones(25))
    assert sum(batch.rewards.sum() for batch in log.batches()) == 25


def test_a_log_that_is_dropped_is_written(tmp_path):
    log_of(tmp_path / "log", made_index(), made_queries(5))
    gc.collect()
    assert len(list((tmp_path / "log").glob("*.parquet"))) == 1
    script = "from softindex import decisions; log = decisions.Log('log'); log.add_rewards(['a:0'], [1.0])"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert len(list((tmp_path / "log").glob("rewards-*.parquet"))) == 1


def test_a_log_without_decisions_is_not_intact(tmp_path):
    with pytest.raises(softindex.InputError, match="holds no decisions"):
        decisions.replay(decisions.Log(tmp_path), made_index())


def test_a_saved_snapshot_replays_by_its_number(tmp_path):
    index, queries = made_index(), made_queries(8)
    with softindex.open(tmp_path / "live", create=index) as live:
        log, old = decisions.Log(tmp_path / "log"), live.snapshot()
        log.append(queries, old.sample(queries, temperature=1.0), temperature=1.0)
        live.remove([0, 1])
        log.append(queries, live.snapshot().sample(queries, temperature=1.0), temperature=1.0)
        old.save(tmp_path / "old")
        found = decisions.replay(log, softindex.load(tmp_path / "old"), snapshot=old.snapshot)
    assert (found.compared, found.differing, found.skipped) == (8, 0, {"another snapshot": 8})


@pytest.mark.parametrize("option", [{"n": 2}, {"seed": 77}, {"method": "exact"}])
def test_options_that_contradict_the_draws_are_refused(option, tmp_path):
    index, queries = made_index(), made_queries(3)
    draws, log = index.sample(queries, temperature=1.0, seed=5), decisions.Log(tmp_path)
    with pytest.raises(softindex.InputError, match="but the draws were made with"):
        log.append(queries, draws, temperature=1.0, **option)
    log.append(queries, draws, temperature=1.0, n=1, seed=5, method="sd-2ls")


class FewAtATime:
    """An index behind a server that takes three queries in a call."""

    most_queries = 3

    def __init__(self, index):
        self.index = index

    def log_prob(self, queries, ids, **options):
        assert len(queries) <= self.most_queries
        return self.index.log_prob(queries, ids, **options)

    def sample(self, queries, n, **options):
        assert len(queries) <= self.most_queries
        return self.index.sample(queries, n, **options)


@pytest.mark.parametrize("number", [0, 3, 8])
def test_a_server_is_asked_in_parts(number, tmp_path):
    options = {"temperature": 1.0, **OPTIONS[number]}
    index, queries = made_index(), made_queries(40)
    log, _ = log_of(tmp_path, index, queries, 3, rewards=lambda _, ids: np.ones(ids.shape), **options)
    few = FewAtATime(index)
    assert decisions.replay(log, few).intact
    one, other = (decisions.score(log, decisions.Policy(each, 0.5)) for each in (index, few))
    np.testing.assert_array_equal(one.target, other.target)
    marginals = decisions.position_marginals(few, queries[0], [1, 2, 3], 2, temperature=1.0, draws=7, exclude=[4])
    assert marginals.probability.shape == (2, 3)
