"""Looking ids up: what is found, what is refused, and that nobody can choose strings that collide."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from softindex.errors import CorruptIndexError, InputError, UnknownIdError
from softindex.ids import StringIds, id_map
from softindex.kernels import hash_strings

SAVED = Path(__file__).parent / "saved"
TEXTS = ["", "a", "b\0c", "é", "漢字", "𝄞 clef", "x" * 300, "lone \ud800 surrogate", "item 7", "item 70"]
rng = np.random.default_rng(0)
UNEVEN = {
    "dense": np.arange(50_000),
    "two far groups": np.concatenate([np.arange(3_000), 10**15 + np.arange(9_000)]),
    "exponential": np.unique(np.exp(rng.uniform(0, 43, 40_000)).astype(np.int64)),
    "negative": -(np.arange(7_000) ** 3),
    "the ends of int64": np.array([-(2**63), -(2**63) + 1, -1, 0, 2**63 - 2, 2**63 - 1]),
    "equal as doubles": 2**62 + np.arange(5_000),
    "one": np.array([5]),
}


def named(ids):
    order = np.random.default_rng(1).permutation(len(ids))
    positions = np.empty(len(ids), np.int64)
    positions[order] = np.arange(len(ids))
    return id_map(ids, order, positions), positions


def texts(values):
    return np.array([f"item-{value}" for value in values])


@pytest.mark.parametrize("spread", UNEVEN)
def test_every_integer_is_found_however_ids_are_spread(spread):
    ids = np.random.default_rng(2).permutation(UNEVEN[spread])
    table, positions = named(ids)
    np.testing.assert_array_equal(table.find(ids), positions)
    np.testing.assert_array_equal(table.find(ids.tolist()[::-1]), positions[::-1])
    near = np.setdiff1d(np.concatenate([ids[ids < 2**63 - 1] + 1, ids[ids > -(2**63)] - 1, [0, 12345]]), ids)
    assert (table.find(near, missing=-1) == -1).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60, unique=True), st.data())
def test_integers_are_found_like_in_a_dictionary(ids, data):
    table, positions = named(np.array(ids, np.int64))
    where = dict(zip(ids, positions.tolist(), strict=True))
    wanted = data.draw(st.lists(st.sampled_from(ids) | st.integers(-(2**80), 2**80), max_size=20))
    assert table.find(wanted, missing=-7).tolist() == [where.get(one, -7) for one in wanted]


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "list of NumPy integers": lambda ids: [np.int64(one) for one in ids],
    "mixed list": lambda ids: [ids[0], *(np.int32(one) for one in ids[1:])],
    **{
        name: lambda ids, name=name: np.array(ids, name)
        for name in ("int16", "int32", "int64", "uint8", "uint32", "uint64", "object", ">i8")
    },
    "every other one": lambda ids: np.repeat(ids, 2)[::2],
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_integers_are_found_in_every_container(container):
    ids = np.arange(5, 250, 7)
    for table, positions in (named(ids), (id_map(None, np.arange(300), np.arange(300)), ids)):
        np.testing.assert_array_equal(table.find(CONTAINERS[container](ids.tolist())), positions)
        np.testing.assert_array_equal(table.find(CONTAINERS[container](ids.tolist()), missing=-1), positions)
        assert table.find(range(5, 7), missing=-1)[0] == positions[0]
        assert table.find(5) == table.find(np.int64(5)) == table.find(np.uint64(5)) == positions[0]
        assert table.find(()).shape == (0,)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=9).map(lambda text: text.rstrip("\0")), min_size=1, max_size=60, unique=True))
def test_strings_are_found_in_every_container(ids):
    table, positions = named(np.array(ids))
    forms = [ids, tuple(ids), np.array(ids), np.array(ids, object), np.array(ids, ">U9"), np.array(ids)[::-1][::-1]]
    for form in forms:
        np.testing.assert_array_equal(table.find(form), positions)
    assert table.at(positions).tolist() == ids
    np.testing.assert_array_equal(table.find(np.array([ids, ids])), [positions, positions])
    np.testing.assert_array_equal(table.find([ids, ids]), [positions, positions])


def test_odd_strings_are_found_and_their_neighbours_are_not():
    table, positions = named(np.array(TEXTS))
    np.testing.assert_array_equal(table.find(TEXTS), positions)
    np.testing.assert_array_equal(table.find(np.array(TEXTS)), positions)
    others = ["b", "b\0", "item 71", "lone \ud801 surrogate", "e\u0301"]
    assert table.find(others, missing=-5).tolist() == [-5] * 5
    # NumPy cannot tell zeros at the end of a string from its padding.
    assert table.find(np.array(["a\0\0", "zz"]), missing=-5).tolist() == [positions[1], -5]


def test_strings_of_one_hash_are_still_told_apart():
    table, _ = named(texts(range(200)))
    wanted, one = table.at(np.arange(200)), np.empty(1, np.uint64)
    for position in (0, 11, 199):
        text = np.frombuffer(wanted[position].encode(), np.uint8)
        hash_strings(text, np.array([len(text)]), table.key, one)
        crowded = StringIds(table.text, table.ends, np.full(200, one[0]), np.arange(200, dtype=np.int32), table.key)
        assert crowded.find([wanted[position]]).tolist() == [position]


def test_hashes_are_keyed_by_each_build_and_the_key_is_saved(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    first, second = (softindex.build(vectors, ids=texts(range(50)), clusters=3) for _ in range(2))
    tables = [index._contents.ids for index in (first, second)]
    assert tables[0].key.tolist() != tables[1].key.tolist()
    assert not np.isin(tables[0].hashes, tables[1].hashes).any()
    first.save(tmp_path / "saved")
    loaded = softindex.load(tmp_path / "saved")._contents.ids
    assert loaded.key.tolist() == tables[0].key.tolist()
    np.testing.assert_array_equal(loaded.hashes, tables[0].hashes)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_ids_of_a_file_without_a_key_get_one(version):
    index = softindex.load(SAVED / version / "strings")
    assert index._contents.ids.key is None
    np.testing.assert_array_equal(index._contents.ids.find(index.ids), np.arange(len(index)))
    with pytest.raises(UnknownIdError, match="'item 5'"):
        index._contents.ids.find(["item 5"])


def strings_with_missing():
    kind = np.dtypes.StringDType(na_object=None) if hasattr(np.dtypes, "StringDType") else object
    return np.array(["item-1", None], dtype=kind)


@pytest.fixture(scope="module")
def integers():
    vectors = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    return softindex.build(vectors, ids=np.arange(100, 140), clusters=4)


@pytest.fixture(scope="module")
def strings():
    vectors = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    return softindex.build(vectors, ids=texts(range(40)), clusters=4)


@pytest.mark.parametrize(
    ("exclude", "sentence"),
    [
        ([101, 2**70], f"^id {2**70} in exclude is not in this index"),
        ([2**63, -1], f"^id {2**63} in exclude is not in this index"),
        (np.array([101, 2**70], object), f"^id {2**70} in exclude is not in this index"),
        (np.array([101, 2**64 - 1], np.uint64), f"^id {2**64 - 1} in exclude is not in this index"),
        ([True, 101], "^got boolean ids, but this index has integer ids"),
        (np.array([True]), r"^exclude is a mask of shape \(1,\); expected \(40,\)"),
        ([101, 102.0], "^got float ids, but this index has integer ids"),
        ([101, "item-1"], "^got string ids, but this index has integer ids"),
        (["item-1"], "^got string ids, but this index has integer ids"),
        ([b"item"], "^got bytes ids, but this index has integer ids"),
        ([101, None], "^got NoneType ids, but this index has integer ids"),
        (np.array(["2020-01-01"], "M8[D]"), "^got date ids, but this index has integer ids"),
    ],
)
def test_odd_integers_are_refused_with_a_sentence(integers, exclude, sentence):
    with pytest.raises(InputError, match=sentence):
        integers.sample(np.ones(3), temperature=1.0, exclude=exclude)


@pytest.mark.parametrize(
    ("exclude", "sentence"),
    [
        ([1], "^got integer ids, but this index has string ids"),
        (["item-1", 1], "^got integer ids, but this index has string ids"),
        (["item-1", np.str_("item-2"), True], "^got boolean ids, but this index has string ids"),
        (np.array([b"item-1"]), "^got bytes ids, but this index has string ids"),
        (strings_with_missing(), "^got NoneType ids, but this index has string ids"),
        (["item-1", "item-x"], "^id 'item-x' in exclude is not in this index"),
        (np.array(["item-1", "item-x"]), "^id 'item-x' in exclude is not in this index"),
    ],
)
def test_odd_strings_are_refused_with_a_sentence(strings, exclude, sentence):
    with pytest.raises(InputError, match=sentence):
        strings.sample(np.ones(3), temperature=1.0, exclude=exclude)


def test_every_type_of_string_is_understood(strings):
    forms = [["item-3", np.str_("item-5")], np.array(["item-3", "item-5"], object), {"item-3", "item-5"}]
    if hasattr(np.dtypes, "StringDType"):
        forms.append(np.array(["item-3", "item-5"], np.dtypes.StringDType()))
    for form in forms:
        law = strings.log_prob(np.ones(3), texts(range(40)), temperature=1.0, exclude=form)
        assert np.flatnonzero(np.isneginf(law)).tolist() == [3, 5]


def test_large_and_missing_ids_are_ignored_where_asked(integers):
    asked = {"temperature": 1.0, "unknown": "ignore", "seed": 0}
    expected = integers.sample(np.ones(3), 20, exclude=[101], **asked).ids
    for exclude in ([101, 2**70, -(2**70)], np.array([101, 2**64 - 1], np.uint64), np.array([101, 5], object)):
        np.testing.assert_array_equal(integers.sample(np.ones(3), 20, exclude=exclude, **asked).ids, expected)


@pytest.mark.parametrize("unknown", [np.array(["error", "ignore"]), np.array("error"), ["error"], b"error", 1])
def test_unknown_is_one_of_two_words(integers, unknown):
    for call in (
        lambda **asked: integers.sample(np.ones(3), temperature=1.0, **asked),
        lambda **asked: integers.log_prob(np.ones(3), [101], temperature=1.0, **asked),
        lambda **asked: integers.log_partition(np.ones(3), temperature=1.0, **asked),
        lambda **asked: integers.top_k(np.ones(3), 2, **asked),
    ):
        with pytest.raises(InputError, match=r"^unknown is .*; expected one of error, ignore\.$"):
            call(unknown=unknown)


def test_tensors_are_arrays_of_ids(integers):
    torch = pytest.importorskip("torch")
    draws = integers.sample(np.ones(3), 50, temperature=1.0, exclude=torch.arange(100, 130), seed=0)
    assert draws.ids.min() >= 130
    with pytest.raises(InputError, match=r"^ids cannot be turned into an array \(.*grad.*\); pass a list or an array"):
        integers.sample(np.ones(3), temperature=1.0, exclude=torch.ones(3, requires_grad=True))


def test_ids_that_point_nowhere_are_damage():
    table, _ = named(texts(range(20)))
    beyond = StringIds(table.text, table.ends, table.hashes, table.positions + 20, table.key)
    with pytest.raises(CorruptIndexError, match="points to no item"):
        beyond.find(texts(range(3)))
    with pytest.raises(CorruptIndexError, match="points to no item"):
        table.at(np.array([20]))
    backward = StringIds(table.text, table.ends[::-1].copy(), table.hashes, table.positions, table.key)
    with pytest.raises(CorruptIndexError, match="not text"):
        backward.find(texts(range(20)))
    latin = StringIds(np.full_like(table.text, 0xFF), table.ends, table.hashes, table.positions, table.key)
    with pytest.raises(CorruptIndexError, match="not text"):
        latin.at(np.arange(3))
