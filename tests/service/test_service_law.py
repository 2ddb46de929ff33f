"""The law over HTTP is the law in process: same seed, same ids and log_prob to the last bit."""

import base64

import numpy as np
import pytest
from servers import D, items, running

import softindex
from softindex.laws import METHODS

QUERIES = items(3, seed=1)
TEMPERATURE = 0.2


def same(answer, record, *names):
    for name in names:
        np.testing.assert_array_equal(np.array(answer[name]), np.asarray(getattr(record, name)), err_msg=name)


def encoded(array):
    return base64.b64encode(np.asarray(array, "<f4").tobytes()).decode()


@pytest.mark.parametrize("method", METHODS)
def test_draws_are_those_in_process(server, index, method):
    body = {"queries": QUERIES.tolist(), "n": 20, "temperature": TEMPERATURE, "method": method, "seed": 7}
    answer = server.answer("sample", body)
    draws = index.sample(QUERIES, 20, temperature=TEMPERATURE, method=method, seed=7)
    same(answer, draws, "ids", "log_prob", "items_scored")
    assert answer["seed"] == 7
    assert answer["method"] == method
    stated = np.array(answer["error"], float)
    np.testing.assert_array_equal(stated, draws.error)
    if draws.log_partition is not None:
        np.testing.assert_array_equal(answer["log_partition"], draws.log_partition.value)
    if draws.low is not None:
        same(answer, draws, "low", "high")


@pytest.mark.parametrize(
    "options",
    [
        {"replace": False},
        {"exclude": ["item 1", "item 2"]},
        {"exclude": [["item 1"], [], None]},
        {"allow": [f"item {row}" for row in range(50)]},
        {"allow": [["item 1", "item 2"], ["item 3"], None], "exclude": ["item 1"]},
        {"allow": [row % 3 == 0 for row in range(2000)]},
        {"exclude": [row % 5 > 0 for row in range(2000)]},
        {"allow": [[row % (2 + query) == 0 for row in range(2000)] for query in range(3)]},
        {"allow": [row < 900 for row in range(2000)], "exclude": ["item 7"]},
        {"top_p": 0.5},
        {"probes": 0},
        {"tolerance": 0.5},
        {"method": "top-k", "k": 30},
        {"exclude": ["nobody"], "unknown": "ignore"},
        {"replace": False, "top_p": 0.9, "exclude": ["item 7"], "method": "exact"},
    ],
)
def test_options_mean_what_they_mean_in_process(server, index, options):
    body = {"queries": QUERIES.tolist(), "n": 10, "temperature": TEMPERATURE, "seed": 3, **options}
    same(
        server.answer("sample", body),
        index.sample(QUERIES, 10, temperature=TEMPERATURE, seed=3, **options),
        "ids",
        "log_prob",
    )


def test_every_form_of_a_query_draws_the_same(server, index):
    rest = {"n": 5, "temperature": TEMPERATURE, "seed": 11}
    wanted = index.sample(QUERIES, 5, temperature=TEMPERATURE, seed=11)
    forms = [QUERIES.tolist(), encoded(QUERIES), {"float32": encoded(QUERIES), "shape": [3, D]}]
    for form in forms:
        same(server.answer("sample", {"queries": form, **rest}), wanted, "ids", "log_prob")
    raw = server.client.post(
        "/v1/sample",
        params={**rest, "method": "sd-2ls"},
        content=QUERIES.astype("<f4").tobytes(),
        headers={"content-type": "application/octet-stream"},
    )
    same(raw.json(), wanted, "ids", "log_prob")


def test_one_query_gives_results_without_the_row_axis(server, index):
    rest = {"n": 5, "temperature": TEMPERATURE, "seed": 11}
    wanted = index.sample(QUERIES[0], 5, temperature=TEMPERATURE, seed=11)
    for form in (QUERIES[0].tolist(), {"float32": encoded(QUERIES[0]), "shape": [D]}):
        answer = server.answer("sample", {"queries": form, **rest})
        same(answer, wanted, "ids", "log_prob")
        assert answer["error"] == wanted.error


def test_an_item_is_a_query(server, index):
    rest = {"n": 5, "temperature": TEMPERATURE, "seed": 2}
    names = ["item 5", "item 9"]
    batch = index.sample(index.vectors(names), 5, temperature=TEMPERATURE, seed=2)
    same(server.answer("sample", {"items": names, **rest}), batch, "ids", "log_prob")
    single = index.sample(index.vectors("item 5"), 5, temperature=TEMPERATURE, seed=2)
    same(server.answer("sample", {"item": "item 5", **rest}), single, "ids", "log_prob")


@pytest.mark.parametrize("seed", [0, 2**53 - 1, str(2**53 + 1), str(2**64 - 1)])
def test_seeds_of_64_bits_survive_as_strings(server, index, seed):
    body = {"queries": QUERIES.tolist(), "n": 3, "temperature": TEMPERATURE, "seed": seed}
    answer = server.answer("sample", body)
    assert answer["seed"] == seed
    same(answer, index.sample(QUERIES, 3, temperature=TEMPERATURE, seed=int(seed)), "ids", "log_prob")


def test_a_fresh_seed_is_a_number_that_every_program_can_read_and_send_again(server):
    body = {"queries": QUERIES.tolist(), "n": 3, "temperature": TEMPERATURE}
    first, second = server.answer("sample", body), server.answer("sample", body)
    assert first["seed"] != second["seed"]
    assert 0 <= first["seed"] < 2**53
    assert server.answer("sample", {**body, "seed": first["seed"]})["ids"] == first["ids"]


def test_log_prob_is_that_in_process(server, index):
    names = [f"item {row}" for row in range(40)]
    for method in ("exact", "sd-2ls", "2ls"):
        body = {"queries": QUERIES.tolist(), "ids": names, "temperature": TEMPERATURE, "method": method}
        wanted = index.log_prob(QUERIES, names, temperature=TEMPERATURE, method=method)
        np.testing.assert_array_equal(server.answer("log-prob", body)["log_prob"], wanted)


def test_minus_infinity_is_spelled_out(server):
    body = {"queries": QUERIES[0].tolist(), "ids": ["item 1", "nobody"], "temperature": 1, "missing": "-inf"}
    answer = server.answer("log-prob", body)["log_prob"]
    assert answer[1] == "-inf"
    assert isinstance(answer[0], float)


def test_a_method_without_a_stated_error_answers_null(server):
    body = {"queries": QUERIES.tolist(), "temperature": TEMPERATURE, "probes": 0}
    assert server.answer("sample", body)["error"] == [None] * 3


def test_log_partition_and_top_k_are_those_in_process(server, index):
    for method in ("exact", "certified", "sd-2ls"):
        body = {"queries": QUERIES.tolist(), "temperature": TEMPERATURE, "method": method}
        answer = server.answer("log-partition", body)
        wanted = index.log_partition(QUERIES, temperature=TEMPERATURE, method=method)
        same(answer, wanted, *(["value"] if wanted.low is None else ["value", "low", "high"]))
        assert answer.get("guarantee") == wanted.guarantee
    answer, wanted = server.answer("top-k", {"queries": QUERIES.tolist(), "k": 9}), index.top_k(QUERIES, 9)
    same(answer, wanted, "ids", "scores", "proven", "gap", "recall", "items_scored")


def test_refusals_are_the_sentences_of_the_library(server, index):
    wrong = [
        {"temperature": -1.0},
        {"n": 0},
        {"method": "best"},
        {"queries": [[1.0, 2.0]]},
        {"exclude": ["nobody"]},
        {"top_p": 2.0},
        {"seed": -1},
        {"k": 3},
        {"n": 5000, "replace": False},
    ]
    for change in wrong:
        body = {"queries": QUERIES.tolist(), "n": 2, "temperature": TEMPERATURE} | change
        found = server.post("sample", body)
        assert found.status_code == 422
        assert found.headers["content-type"] == "application/problem+json"
        arguments = dict(body)
        with pytest.raises(softindex.InputError) as raised:
            index.sample(np.array(arguments.pop("queries")), arguments.pop("n"), **arguments)
        assert found.json()["detail"] == str(raised.value)
        assert "Traceback" not in found.text


def test_a_learned_similarity_is_served(tmp_path):
    components = np.random.default_rng(0).standard_normal((300, 2, 8)).astype(np.float32)

    class Plain:
        def spec(self):
            return softindex.mol.SimilaritySpec(2, 2, 8, 1.0, False, None, None, False)

        def item_side(self, rows):
            return softindex.mol.ItemSide(rows, None)

    made = softindex.mol.build(Plain(), components)
    made.save(tmp_path / "mol")
    query = np.random.default_rng(1).standard_normal((2, 2, 8)).astype(np.float32)
    with running(tmp_path / "mol") as server:
        assert server.client.get("/v1/info").json()["kind"] == "learned-similarity"
        answer = server.answer("sample", {"queries": query.tolist(), "n": 4, "temperature": 1.0, "seed": 5})
        wanted = made.sample(query, 4, temperature=1.0, seed=5)
        same(answer, wanted, "ids", "scores")
        assert answer["log_prob"] == [[None] * 4] * 2
        same(
            server.answer("top-k", {"queries": query.tolist(), "k": 5}), made.top_k(query, 5), "ids", "scores", "proven"
        )
        refused = server.post("log-partition", {"queries": query.tolist(), "temperature": 1.0})
        assert refused.status_code == 422
        refused = server.post("sample", {"queries": query.tolist(), "temperature": 1.0, "probes": 3})
        assert refused.json()["detail"] == "probes is not an option of sample for this kind of index; leave it out."
