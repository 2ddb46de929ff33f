"""An index on disk: intact, the same as before, and in every later version."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import softindex
from softindex.records import Stored
from softindex.store import load as load_stored
from softindex.store import read_manifest
from softindex.store import save as save_stored

SAVED = Path(__file__).parent / "saved"
sys.path.insert(0, str(SAVED))
import make  # noqa: E402

EVERY = sorted(path.relative_to(SAVED).as_posix() for path in SAVED.glob("v*/*") if path.is_dir())
INDEXES = [path for path in EVERY if read_manifest(SAVED / path).kind == "index"]
OTHERS = {"mixture": make.mixture_answers, "layer": make.layer_answers}


def test_every_saved_directory_is_tested():
    assert {path for path in EVERY if path not in INDEXES} == {path for path in EVERY if path.split("/")[1] in OTHERS}
    assert len(INDEXES) >= 9
    assert len(EVERY) >= 11


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("path", INDEXES)
def test_an_index_saved_by_an_earlier_version_answers_as_it_did(path, mmap):
    index = softindex.load(SAVED / path, mmap=mmap, verify=True)
    _, queries, _ = make.inputs()
    expected, found = json.loads((SAVED / f"{path}.json").read_text()), make.answers(index, queries)
    assert found["top_k"] == expected["top_k"]
    assert found["draws"] == expected["draws"]
    for part in ("log_prob", "log_partition"):
        for method, values in expected[part].items():
            # To float32's precision: later versions may round better.
            np.testing.assert_allclose(found[part][method], values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("path", [path for path in EVERY if path not in INDEXES])
def test_the_other_products_answer_as_they_did(path, mmap):
    expected = json.loads((SAVED / f"{path}.json").read_text())
    found = OTHERS[path.split("/")[1]](softindex.load(SAVED / path, mmap=mmap, verify=True))
    assert found["top_k"] == expected["top_k"]
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", EVERY)
def test_what_was_loaded_is_saved_in_its_own_version(path, tmp_path):
    softindex.load(SAVED / path).save(tmp_path / "again")
    assert read_manifest(tmp_path / "again").version == read_manifest(SAVED / path).version
    for blob in (SAVED / path).glob("*.bin"):
        assert blob.read_bytes() == (tmp_path / "again" / blob.name).read_bytes()
    softindex.load(tmp_path / "again", verify=True)


def small():
    return softindex.build(np.random.default_rng(0).standard_normal((80, 6)).astype(np.float32))


def test_saving_what_was_loaded_writes_the_same_bytes(tmp_path):
    small().save(tmp_path / "first")
    softindex.load(tmp_path / "first").save(tmp_path / "second")
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_an_index_may_be_saved_over_itself_while_it_is_mapped(tmp_path):
    small().save(tmp_path / "index")
    loaded = softindex.load(tmp_path / "index")
    query = np.ones(6, np.float32)
    before = loaded.log_prob(query, range(80), temperature=1.0)
    loaded.save(tmp_path / "index")
    np.testing.assert_array_equal(loaded.log_prob(query, range(80), temperature=1.0), before)
    np.testing.assert_array_equal(
        softindex.load(tmp_path / "index").log_prob(query, range(80), temperature=1.0), before
    )


def test_every_flipped_byte_of_an_index_is_refused_at_load(tmp_path):
    small().save(tmp_path / "index")
    rng = np.random.default_rng(0)
    for path in sorted((tmp_path / "index").iterdir()):
        whole = path.read_bytes()
        for place in rng.choice(len(whole), size=min(len(whole), 40), replace=False):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            with pytest.raises(softindex.StorageError):
                softindex.load(tmp_path / "index")
        path.write_bytes(whole)
    softindex.load(tmp_path / "index")


def changed(stored, *, drop=(), parameters=None, **arrays):
    kept = {name: array for name, array in stored.arrays.items() if name not in drop}
    return Stored(stored.kind, {**stored.parameters, **(parameters or {})}, {**kept, **arrays})


WRONG = {
    "no vectors": lambda s: changed(s, drop=["vectors"]),
    "no means": lambda s: changed(s, drop=["means"]),
    "no ids": lambda s: changed(s, drop=["id_positions"]),
    "short ids": lambda s: changed(s, id_rows=s.arrays["id_rows"][:-1]),
    "float ids": lambda s: changed(s, id_positions=s.arrays["id_positions"].astype(np.float32)),
    "long offsets": lambda s: changed(s, offsets=s.arrays["offsets"] + 1),
    "backward offsets": lambda s: changed(s, offsets=s.arrays["offsets"][::-1].copy()),
    "wrapping offsets": lambda s: changed(s, offsets=np.array([0, 1, -(2**63), -(2**62), *[80] * 6])),
    "wrong dtype": lambda s: changed(s, vectors=s.arrays["vectors"].astype(np.float64)),
    "wrong dimension": lambda s: changed(s, means=s.arrays["means"][:, :-1].copy()),
    "no scales": lambda s: changed(s, drop=["scales"]),
    "short forms": lambda s: changed(s, forms=s.arrays["forms"][:-1].copy()),
    "short sizes": lambda s: changed(s, log_sizes=s.arrays["log_sizes"][:-1].copy()),
    "flat means": lambda s: changed(s, means=s.arrays["means"].ravel()),
    "flat forms": lambda s: changed(s, forms=s.arrays["forms"].ravel()),
    "wide forms": lambda s: changed(s, forms=s.arrays["forms"].astype(np.int32)),
    "no items": lambda s: changed(s, parameters={"items": None}),
    "unknown dispersion": lambda s: changed(s, parameters={"dispersion": "some"}),
    "unknown ids": lambda s: changed(s, parameters={"ids": "emoji"}),
    "text rank": lambda s: changed(s, parameters={"rank": "many"}),
    "bias without its maximum": lambda s: changed(s, log_bias=np.zeros(80, np.float32)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_whole_directory_that_is_no_whole_index_is_refused(name, tmp_path):
    small().save(tmp_path / "index")
    save_stored(tmp_path / "wrong", WRONG[name](load_stored(tmp_path / "index")))
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong")


def test_positions_that_lead_outside_are_refused_and_not_followed(tmp_path, monkeypatch):
    small().save(tmp_path / "index")
    stored = load_stored(tmp_path / "index")
    save_stored(tmp_path / "wrong", changed(stored, id_positions=stored.arrays["id_positions"] + 1000))
    with pytest.raises(softindex.CorruptIndexError, match="id_positions"):
        softindex.load(tmp_path / "wrong")
    # As if the file had changed after it was loaded.
    monkeypatch.setattr("softindex.contents.check_id_map", lambda ids: None)
    index = softindex.load(tmp_path / "wrong")
    with pytest.raises(softindex.CorruptIndexError):
        index.log_prob(np.ones(6, np.float32), [3], temperature=1.0)


def large(tmp_path, name, change, **settings):
    """An index whose array of this name is too large to be checked when it is mapped, damaged on disk."""
    data = np.random.default_rng(0).standard_normal((5000, 900)).astype(np.float32)
    softindex.build(data, clusters=20, dispersion="none", **settings).save(tmp_path / "large")
    path = tmp_path / "large" / f"{name}.bin"
    values = np.memmap(path, np.float32, "r+")
    values[:] = change
    values.flush()
    return softindex.load(tmp_path / "large"), data[0]


def test_a_mapped_index_full_of_nan_is_refused_and_not_believed(tmp_path):
    index, query = large(tmp_path, "vectors", np.nan)
    for method in ("exact", "s-2ls"):
        with pytest.raises(softindex.CorruptIndexError):
            index.sample(query, temperature=1.0, method=method)
    with pytest.raises(softindex.CorruptIndexError):
        index.log_partition(query, temperature=1.0, method="exact")
    with pytest.raises(softindex.CorruptIndexError):
        index.top_k(query, 50)


def test_damaged_string_ids_are_refused(tmp_path, monkeypatch):
    softindex.build(np.eye(4, dtype=np.float32), ids=["a", "b", "c", "d"]).save(tmp_path / "index")
    stored = load_stored(tmp_path / "index")
    for name, change in (("id_positions", 10**6), ("id_ends", 10**6), ("id_ends", -5)):
        save_stored(tmp_path / "wrong", changed(stored, **{name: stored.arrays[name] + change}))
        with pytest.raises(softindex.CorruptIndexError, match=name):
            softindex.load(tmp_path / "wrong")
        # As if the file had changed after it was loaded.
        with monkeypatch.context() as patched:
            patched.setattr("softindex.contents.check_id_map", lambda ids: None)
            index = softindex.load(tmp_path / "wrong")
        with pytest.raises(softindex.CorruptIndexError):
            index.log_prob(np.ones(4, np.float32), ["a"], temperature=1.0)


def test_a_save_of_another_kind_is_not_replaced(tmp_path):
    small().save(tmp_path / "kept")
    layer = softindex.AdaptiveSoftmax(np.ones((3, 4), np.float32))
    with pytest.raises(softindex.SaveError, match="holds an index, so an adaptive softmax does not replace it"):
        layer.save(tmp_path / "kept")
    assert len(softindex.load(tmp_path / "kept")) == 80
    small().save(tmp_path / "kept")


def test_something_else_that_was_saved_is_not_an_index(tmp_path):
    save_stored(tmp_path / "other", Stored("head", {}, {"weights": np.zeros(3)}))
    with pytest.raises(softindex.NotAnIndexError):
        softindex.load(tmp_path / "other")
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(softindex.NotAnIndexError):
            softindex.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": ["log_bias", "bias_max"]}, "log_bias is missing"),
        ({"bias_max": np.full(9, np.nan, np.float32)}, "bias_max holds values"),
        ({"parameters": {"rank": None}}, "parameter rank"),
    ],
)
def test_an_index_whose_parts_contradict_each_other_is_refused(changes, message, tmp_path):
    vectors = np.random.default_rng(0).standard_normal((80, 6)).astype(np.float32)
    softindex.build(vectors, log_bias=np.zeros(80), clusters=9).save(tmp_path / "index")
    save_stored(tmp_path / "wrong", changed(load_stored(tmp_path / "index"), **changes))
    with pytest.raises(softindex.CorruptIndexError, match=message):
        softindex.load(tmp_path / "wrong")


def hand_made():
    """An index with every array, whose statements about its items can be changed."""
    rng = np.random.default_rng(0)
    vectors, bias = rng.standard_normal((400, 6)).astype(np.float32), rng.standard_normal(400)
    vectors[7] *= 20
    return softindex.build(vectors, log_bias=bias, bias=bias, codes=True, tree=True, clusters=9, dispersion=2)


LIES = {
    "bias_max": lambda values: values - 1,
    "log_sizes": lambda values: values + 0.1,
    "log_bias": lambda values: values[::-1].copy(),
    "means": lambda values: 0.9 * values,
    "vectors": lambda values: values[::-1].copy(),
    "radii": lambda values: 0.9 * values,
    "norm_min": lambda values: 1.1 * values,
    "norm_max": lambda values: 0.9 * values,
    "min_cosine": lambda values: 0.9 * values + 0.1,
    "reach": lambda values: np.ones_like(values),
    "scales": lambda values: 100 * values,
    "spread": lambda values: 100 * values + 100,
    "code_values": lambda values: values[::-1].copy(),
    "code_scales": lambda values: 2 * values,
    "code_errors": lambda values: 0.5 * values,
    "code_lengths": lambda values: 0.5 * values,
    "outlier_positions": lambda values: values - 1,
    "outlier_vectors": lambda values: 2 * values,
    "outlier_farthest": lambda values: 0.5 * values,
    "sketch_values": lambda values: values[::-1].copy(),
    "sketch_scales": lambda values: 0.5 * values,
    "sketch_errors": lambda values: 0.9 * values,
    "sketch_lengths": lambda values: 0.9 * values,
    "tree_means": lambda values: values[::-1].copy(),
    "tree_log_sizes": lambda values: values - 0.1,
    "id_rows": lambda values: values[::-1].copy(),
    "id_positions": lambda values: values[::-1].copy(),
}


@pytest.mark.parametrize("name", LIES)
def test_what_an_index_states_of_its_items_is_compared_with_them(name, tmp_path, monkeypatch):
    hand_made().save(tmp_path / "index")
    stored = load_stored(tmp_path / "index")
    lie = LIES[name](stored.arrays[name]).astype(stored.arrays[name].dtype)
    save_stored(tmp_path / "wrong", changed(stored, **{name: lie}))
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong")
    # As if the array were large: compared where every byte is read anyway.
    monkeypatch.setattr("softindex.fields.SMALL_BYTES", 0)
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong", verify=True)


@pytest.mark.parametrize("name", ["bias", "codes", "tree"])
def test_only_version_1_may_leave_a_parameter_unsaid(name, tmp_path):
    small().save(tmp_path / "index")
    stored = load_stored(tmp_path / "index")
    less = {key: value for key, value in stored.parameters.items() if key != name}
    save_stored(tmp_path / "wrong", Stored(stored.kind, less, stored.arrays))
    with pytest.raises(softindex.CorruptIndexError, match=f"parameter {name}"):
        softindex.load(tmp_path / "wrong")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_at_load(value, tmp_path):
    weights = np.random.default_rng(0).standard_normal((80, 6)).astype(np.float32)
    softindex.AdaptiveSoftmax(weights).save(tmp_path / "layer")
    stored = load_stored(tmp_path / "layer")
    weights[3, 2] = value
    save_stored(tmp_path / "wrong", changed(stored, weights=weights))
    with pytest.raises(softindex.CorruptIndexError, match="weights holds values"):
        softindex.load(tmp_path / "wrong")


LAYER_LIES = {
    "lengths": lambda values: 0.5 * values,
    "errors_4": lambda values: 0.5 * values,
    "errors_8": lambda values: np.zeros_like(values),
    "scales_4": lambda values: -values,
    "codes_4": lambda values: values[::-1].copy(),
    "codes_8": lambda values: values[::-1].copy(),
    "columns": lambda values: np.zeros_like(values),
    "calibration": lambda values: values[:, ::-1].copy(),
    "bias": lambda values: 1e30 * values,
    "weights": lambda values: 1e16 * values,
}


@pytest.mark.parametrize("name", LAYER_LIES)
def test_what_a_layer_states_of_its_rows_is_compared_with_them(name, tmp_path):
    make.make_layer().save(tmp_path / "layer")
    stored = load_stored(tmp_path / "layer")
    lie = LAYER_LIES[name](stored.arrays[name]).astype(stored.arrays[name].dtype)
    save_stored(tmp_path / "wrong", changed(stored, **{name: lie}))
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong")


def test_errors_that_are_stated_too_large_change_no_exact_answer(tmp_path):
    layer = make.make_layer()
    layer.save(tmp_path / "layer")
    stored = load_stored(tmp_path / "layer")
    # Still upper bounds, so the file is right; near the end of float32, so their median overflows there.
    save_stored(tmp_path / "loose", changed(stored, errors_4=np.full_like(stored.arrays["errors_4"], 3e38)))
    loose, queries = softindex.load(tmp_path / "loose"), np.random.default_rng(3).standard_normal((3, 300), np.float32)
    for guarantee in ("exact", "deterministic"):
        said = [one.top_k(queries, 5, temperature=2.0, guarantee=guarantee) for one in (layer, loose)]
        assert (said[0].ids == said[1].ids).all()


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80])
def test_bfloat16_weights_that_are_no_numbers_are_refused(bits, tmp_path):
    softindex.AdaptiveSoftmax(np.full((3, 300), 0x3F80, np.uint16)).save(tmp_path / "layer")
    stored = load_stored(tmp_path / "layer")
    weights = stored.arrays["weights"].copy()
    weights[1, 2] = bits
    save_stored(tmp_path / "wrong", changed(stored, weights=weights))
    with pytest.raises(softindex.CorruptIndexError, match="weights holds values"):
        softindex.load(tmp_path / "wrong")
