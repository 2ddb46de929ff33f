"""The log of decisions has a row for every draw that was answered, and enough in it to recompute every propensity."""

import asyncio
import os

import numpy as np
import pytest
from servers import Process, items, running

import softindex
from softindex.decisions import Log, Policy, position_marginals, replay, score
from softindex.service import decisions

pq = pytest.importorskip("pyarrow.parquet")

CALLS = [
    {"queries": items(3, seed=1).tolist(), "n": 4, "temperature": 0.2},
    {"queries": items(1, seed=2)[0].tolist(), "n": 2, "temperature": 0.3, "method": "exact", "seed": str(2**64 - 1)},
    {"queries": items(2, seed=3).tolist(), "n": 5, "temperature": 0.2, "replace": False, "seed": 9},
    {"queries": items(2, seed=4).tolist(), "temperature": 0.2, "exclude": [["item 1", "item 5"], None], "probes": 3},
    {"items": ["item 3", "item 4"], "n": 3, "temperature": 0.1, "top_p": 0.5, "exclude": ["item 7"]},
    {"item": "item 9", "n": 3, "temperature": 0.1, "method": "certified"},
    {"item": "item 9", "n": 3, "temperature": 0.1, "allow": ["item 1", "item 2", "item 9"], "exclude": ["item 1"]},
    {"queries": items(2, seed=7).tolist(), "n": 3, "temperature": 0.1, "exclude": [row % 3 > 0 for row in range(2000)]},
    {
        "queries": items(2, seed=8).tolist(),
        "temperature": 0.1,
        "allow": [[row % (2 + query) == 0 for row in range(2000)] for query in range(2)],
    },
    {"queries": items(1, seed=5).tolist(), "n": 3, "temperature": 0.1, "method": "top-k", "k": 20, "tolerance": 0.5},
    {"queries": items(1, seed=6).tolist(), "n": 3, "temperature": 0.5, "replace": False, "exclude": ["item 2"]},
]


def rows_in(folder):
    files = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
    return [row for name in files for row in pq.read_table(folder / name).to_pylist()]


def test_every_propensity_can_be_recomputed(saved, index, tmp_path):
    with running(saved, log_decisions=str(tmp_path / "log")) as server:
        answers = [server.answer("sample", body) for body in CALLS]
        for refused in ({"temperature": -1.0}, {"method": "best"}):
            assert server.post("sample", CALLS[0] | refused).status_code == 422
    rows = rows_in(tmp_path / "log")
    assert len(rows) == sum(len(answer["ids"]) if isinstance(answer["ids"][0], list) else 1 for answer in answers)
    found = replay(Log(tmp_path / "log"), index)
    assert found.intact, found
    for row in rows:
        # A certified draw follows the softmax, and its stated bounds contain its probability.
        if row["low"] is not None:
            law = index.log_prob(
                np.array(row["query"], np.float32), row["ids"], temperature=row["temperature"], method="exact"
            )
            assert (np.array(row["low"]) <= law + 1e-6).all()
            assert (law - 1e-6 <= np.array(row["high"])).all()
        assert row["time"].tzinfo is not None
        assert len(row["index"]) == 16


def test_the_log_has_what_was_answered(saved, tmp_path):
    with running(saved, log_decisions=str(tmp_path / "log")) as server:
        found = server.post("sample", CALLS[0], headers={"x-request-id": "order-1"}).json()
    rows = rows_in(tmp_path / "log")
    assert [row["request_id"] for row in rows] == ["order-1"] * 3
    assert [row["query_number"] for row in rows] == [0, 1, 2]
    for name in ("ids", "log_prob", "error", "log_partition", "items_scored"):
        assert [row[name] for row in rows] == found[name]
    assert {row["seed"] for row in rows} == {found["seed"]}


def test_the_state_of_a_catalogue_is_logged(tmp_path):
    with softindex.open(tmp_path / "live", create=items(50), ids=list(range(50))):
        pass
    with running(tmp_path / "live", log_decisions=str(tmp_path / "log"), log_queries="hash") as server:
        for number in range(3):
            server.answer("sample", {"item": 1, "n": 2, "temperature": 1.0, "exclude": [7]})
            server.client.put("/v1/items", json={"ids": [100 + number], "vectors": items(1).tolist()})
    rows = rows_in(tmp_path / "log")
    assert [row["snapshot"] for row in rows] == [0, 1, 2]
    assert [row["query"] for row in rows] == [None] * 3
    assert len({row["query_hash"] for row in rows}) == 1
    assert rows[0]["exclude"] == [7]


def test_files_rotate_and_nothing_is_lost_between_them(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "MOST_ROWS", 5)
    with running(saved, log_decisions=str(tmp_path / "log")) as server:
        seeds = []
        for number in range(40):
            seeds.append(number)
            server.answer("sample", CALLS[1] | {"seed": number})
            if number % 10 == 9:
                asyncio.run(server.state.keep_up())
    assert sorted(row["seed"] for row in rows_in(tmp_path / "log")) == seeds
    assert len(os.listdir(tmp_path / "log")) >= 4


def test_answered_draws_survive_kill_9(saved, tmp_path):
    server = Process(saved, "--log-decisions", tmp_path / "log", "--no-access-log")
    seeds = [server.client.post("/v1/sample", json=CALLS[0] | {"seed": number}).json()["seed"] for number in range(30)]
    server.kill()
    server.client.close()
    assert not rows_in(tmp_path / "log")
    assert decisions.recover(str(tmp_path / "log")) == 1
    assert [row["seed"] for row in rows_in(tmp_path / "log")] == [seed for seed in seeds for _ in range(3)]
    assert decisions.recover(str(tmp_path / "log")) == 0


def test_a_torn_journal_keeps_what_is_intact(saved, tmp_path):
    folder = tmp_path / "log"
    with running(saved, log_decisions=str(folder)) as server:
        for number in range(4):
            server.answer("sample", CALLS[1] | {"seed": number})
        (journal,) = folder.iterdir()
        content = journal.read_bytes()
        # Its owner runs: nobody else touches it.
        assert decisions.recover(str(folder)) == 0
    for cut in (1, 7, len(content) // 3):
        torn = tmp_path / f"torn{cut}"
        torn.mkdir()
        (torn / "decisions-a.journal").write_bytes(content[:-cut])
        decisions.recover(str(torn))
        seeds = [row["seed"] for row in rows_in(torn)]
        assert seeds == list(range(len(seeds)))
        assert len(seeds) >= 2


def test_a_full_disk_is_counted_and_serving_goes_on(saved, tmp_path, monkeypatch, capsys):
    with running(saved, log_decisions=str(tmp_path / "log")) as server:
        file = os.open("/dev/full", os.O_WRONLY)
        own, server.state.decisions._file = server.state.decisions._file, file
        server.answer("sample", CALLS[1])
        assert "softindex_decisions_lost 1.0" in server.client.get("/metrics").text
        server.state.decisions._file = own
        os.close(file)
    assert "could not be logged" in capsys.readouterr().err


def test_draws_that_nobody_is_shown_stay_out_of_the_log(saved, index, tmp_path):
    queries = items(300, seed=11)
    with running(saved, log_decisions=str(tmp_path / "log")) as server, softindex.Client(server.url) as client:
        draws = client.sample(queries[:200], temperature=0.3, method="certified")
        client.sample(queries[200:], temperature=0.3)
    with running(saved, log_decisions=str(tmp_path / "log")) as server, softindex.Client(server.url) as client:
        log = Log(tmp_path / "log")
        log.add_rewards([f"{draws.request_id}:{row}" for row in range(200)], np.ones(200))
        assert replay(log, client).intact
        scored = score(log, Policy(client, 0.2, method="certified"))
        assert (scored.rewards.sum(), scored.unmatched) == (200, 0)
        position_marginals(client, queries[0], index.ids[:2], 2, temperature=0.3, draws=300)
    assert len(Log(tmp_path / "log")) == 300
