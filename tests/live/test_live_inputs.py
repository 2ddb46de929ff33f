"""Bad input to a catalogue: one sentence, and nothing changed."""

import os
import sqlite3

import numpy as np
import pytest

import softindex
from softindex.live.log import DATABASE

D = 4


@pytest.fixture
def live(tmp_path):
    rows = np.random.default_rng(0).standard_normal((50, D)).astype(np.float32)
    with softindex.open(tmp_path / "catalogue", create=rows, compaction="manual") as opened:
        yield opened


ONE = np.ones((1, D), np.float32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda live: live.upsert([1], np.ones((1, D + 1), np.float32)), "5 dimensions but this catalogue has 4"),
        (lambda live: live.upsert([1], np.full((1, D), np.nan, np.float32)), "vectors"),
        (lambda live: live.upsert([1, 1], np.ones((2, D), np.float32)), "1"),
        (lambda live: live.upsert([1, 2], ONE), "2"),
        (lambda live: live.upsert(["a"], ONE), "string ids, but this catalogue has integer ids"),
        (lambda live: live.upsert([1.5], ONE), "id"),
        (lambda live: live.upsert(None, ONE), "ids"),
        (lambda live: live.upsert([1], ONE, log_bias=[0.0]), "without log_bias"),
        (lambda live: live.upsert([1], ONE, bias=[0.0]), "without bias"),
        (lambda live: live.remove([1, 1]), "1"),
        (lambda live: live.remove([49, 50]), "50 is not in this catalogue; nothing was removed"),
        (lambda live: live.remove(np.arange(51)), "50 is not in this catalogue"),
        (lambda live: live.remove([1], unknown="drop"), "unknown"),
    ],
)
def test_a_wrong_change_changes_nothing(live, change, sentence):
    number, snapshot = live.number, live.snapshot()
    with pytest.raises(softindex.InputError, match=sentence):
        change(live)
    assert live.number == number
    assert live.snapshot() is snapshot


def test_every_item_can_be_removed_and_the_catalogue_used_again(live):
    live.remove(np.arange(50))
    assert len(live) == 0
    with pytest.raises(softindex.InputError, match="no items"):
        live.snapshot()
    live.compact()
    live.upsert(7, np.ones(D, np.float32))
    assert live.snapshot().ids.tolist() == [7]


def test_no_ids_change_nothing(live):
    assert live.remove([]) == live.number == live.remove([999], unknown="ignore")


def test_a_snapshot_ignores_unknown_ids_in_exclude_unless_told_otherwise(live):
    live.remove([3])
    snapshot, query = live.snapshot(), np.ones(D, np.float32)
    draws = snapshot.sample(query, 100, temperature=1.0, exclude=[3, 4, 1234], seed=0)
    assert not set(draws.ids.tolist()) & {3, 4}
    with pytest.raises(softindex.UnknownIdError, match="exclude"):
        snapshot.sample(query, temperature=1.0, exclude=[3], unknown="error")
    assert snapshot.top_k(query, 3, exclude=[3]).ids.shape == (3,)
    assert np.isfinite(snapshot.log_partition(query, temperature=1.0, exclude=[3]).value)


def test_the_log_probability_of_an_unknown_id_is_an_error_or_on_request_minus_infinity(live):
    live.remove([3])
    query = np.ones((2, D), np.float32)
    for index in (live.snapshot(), softindex.build(np.eye(D, dtype=np.float32))):
        with pytest.raises(softindex.UnknownIdError):
            index.log_prob(query, [1, 999], temperature=1.0)
        law = index.log_prob(query, [1, 999], temperature=1.0, missing="-inf")
        assert np.isfinite(law[:, 0]).all()
        assert (law[:, 1] == -np.inf).all()
    with pytest.raises(softindex.InputError, match="missing"):
        index.log_prob(query, [1], temperature=1.0, missing="ignore")


def test_a_directory_that_is_something_else_is_refused(tmp_path):
    (tmp_path / "note.txt").write_text("hello")
    for options in ({}, {"read_only": True}):
        with pytest.raises(softindex.NotAnIndexError, match="not a live catalogue"):
            softindex.open(tmp_path, **options)
    with pytest.raises(softindex.InputError, match="something else"):
        softindex.open(tmp_path, create=D)
    with pytest.raises(softindex.NotAnIndexError, match="not a live catalogue"):
        softindex.open(tmp_path / "missing")
    assert os.listdir(tmp_path) == ["note.txt"]


def test_a_saved_index_is_not_a_catalogue_and_the_other_way_round(tmp_path, live):
    live.snapshot().save(tmp_path / "index")
    with pytest.raises(softindex.NotAnIndexError, match="not a live catalogue"):
        softindex.open(tmp_path / "index")
    with pytest.raises(softindex.NotAnIndexError, match=r"softindex\.open"):
        softindex.load(tmp_path / "catalogue")


def test_a_newer_format_and_a_foreign_database_are_refused(tmp_path, live):
    live.close()
    path = tmp_path / "catalogue"
    database = sqlite3.connect(path / DATABASE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(softindex.FormatVersionError, match="format 99"):
        softindex.open(path)
    (path / DATABASE).write_bytes(b"this is not a database, but long enough to look at" * 100)
    with pytest.raises(softindex.StorageError, match="damaged"):
        softindex.open(path)


@pytest.mark.parametrize("options", [{"create": 0}, {"create": 4, "clusters": 3}, {"create": True}, {"read_only": 1}])
def test_wrong_options_of_open_leave_nothing_behind(tmp_path, options):
    with pytest.raises(softindex.InputError):
        softindex.open(tmp_path / "catalogue", **options)
    assert not (tmp_path / "catalogue").exists()


def test_an_index_in_fewer_bits_cannot_become_a_catalogue(tmp_path):
    index = softindex.build(np.eye(D, dtype=np.float32), storage="int8")
    with pytest.raises(softindex.InputError, match="float32"):
        softindex.open(tmp_path / "catalogue", create=index)
    assert not (tmp_path / "catalogue").exists()


def test_a_catalogue_is_not_made_where_one_is(tmp_path, live):
    with pytest.raises(softindex.InputError, match="a catalogue already"):
        softindex.open(tmp_path / "catalogue", create=D)
    assert len(live) == 50


def test_biases_of_items_count(tmp_path):
    with softindex.open(tmp_path / "biased", create=2, log_bias=True, bias=True, compaction="manual") as live:
        live.upsert(
            ["a", "b", "c"], np.zeros((3, 2), np.float32), log_bias=[0.0, np.log(2.0), 0.0], bias=[0.0, 0.0, 1.0]
        )
        for _ in range(2):
            law = live.snapshot().log_prob(np.ones(2), ["a", "b", "c"], temperature=0.5, method="exact")
            weights = np.array([1.0, 2.0, np.exp(2.0)])
            np.testing.assert_allclose(np.exp(law), weights / weights.sum(), rtol=1e-5)
            live.compact()
