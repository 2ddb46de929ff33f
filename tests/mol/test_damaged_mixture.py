"""A learned-similarity index on disk that is damaged, or that lies with valid checksums, is refused."""

import numpy as np
import pytest
from made_similarities import load, queries_of, similarity

from softindex.errors import CorruptIndexError, NotAnIndexError
from softindex.mol import METHODS, SAMPLE_METHODS, build
from softindex.mol.index import KIND
from softindex.records import Stored
from softindex.store import save as save_stored


def test_a_damaged_index_is_refused(tmp_path):
    model = similarity("mixture", 20)
    build(model, np.arange(20)).save(tmp_path / "kept")
    with pytest.raises(NotAnIndexError):
        load(tmp_path)
    facts, arrays = _stored(tmp_path / "kept")
    for name in arrays:
        less = {key: value for key, value in arrays.items() if key != name}
        save_stored(tmp_path / "less", Stored(KIND, facts, less))
        with pytest.raises(CorruptIndexError):
            load(tmp_path / "less")
    save_stored(tmp_path / "cut", Stored(KIND, facts, {**arrays, "gates": arrays["gates"][:-1]}))
    with pytest.raises(CorruptIndexError):
        load(tmp_path / "cut")


LIES = {
    "averages": {"averages": lambda values: values[::-1].copy()},
    "lengths": {"lengths": lambda values: 0.5 * values},
    "gate_sizes": {"gate_sizes": lambda values: 0.5 * values},
    "long components": {"components": lambda values: 2 * values},
    "huge gates": {"gates": lambda values: 1e8 * values},
    "id_positions": {"id_positions": lambda values: values[::-1].copy()},
    "temperature": {"parameter temperature": "warm"},
    "tiny temperature": {"parameter temperature": 1e-300},
    "next_row": {"parameter next_row": 3},
    "no flag": {"parameter normalised": 1},
}


@pytest.mark.parametrize("name", LIES)
def test_what_an_index_states_of_its_items_is_compared_with_them(name, tmp_path):
    build(similarity("mixture", 20), np.arange(20)).save(tmp_path / "kept")
    facts, arrays = _stored(tmp_path / "kept")
    for what, change in LIES[name].items():
        if what.startswith("parameter"):
            facts = {**facts, what.removeprefix("parameter "): change}
        else:
            arrays[what] = change(arrays[what]).astype(arrays[what].dtype)
    save_stored(tmp_path / "lies", Stored(KIND, facts, arrays))
    with pytest.raises(CorruptIndexError):
        load(tmp_path / "lies")


@pytest.mark.parametrize("method", METHODS)
def test_damage_that_loading_does_not_see_is_an_error_and_not_an_answer(tmp_path, method, monkeypatch):
    # As if the arrays were too large for their values to be checked at load, and the ids had changed since.
    monkeypatch.setattr("softindex.fields.SMALL_BYTES", 0)
    monkeypatch.setattr("softindex.mol.storage.check_id_map", lambda ids: None)
    model = similarity("mixture", 20)
    build(model, np.arange(20)).save(tmp_path / "kept")
    facts, arrays = _stored(tmp_path / "kept")
    arrays["components"][3] = np.nan
    arrays["averages"][3] = np.nan
    arrays["id_positions"][4] = 99
    save_stored(tmp_path / "nan", Stored(KIND, facts, arrays))
    opened, queries = load(tmp_path / "nan"), queries_of(model)
    with pytest.raises(CorruptIndexError, match="not numbers"):
        opened.top_k(queries, 20, method=method)
    for sampling in SAMPLE_METHODS:
        with pytest.raises(CorruptIndexError, match="not numbers"):
            opened.sample(queries, 5, temperature=1.0, method=sampling)
    for search in (lambda: opened.remove([4]), lambda: opened.rank(queries, [4], 1)):
        with pytest.raises(CorruptIndexError, match="points to no item"):
            search()


def _stored(path):
    from softindex.store import load as load_stored

    stored = load_stored(path)
    return stored.parameters, {name: np.array(array) for name, array in stored.arrays.items()}
