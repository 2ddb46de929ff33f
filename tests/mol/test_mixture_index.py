"""A MixtureIndex keeps its answers when saved, loaded and changed, and refuses wrong input in one sentence."""

import copy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from made_similarities import KINDS, Given, assert_same, gate, load, queries_of, similarity, truth, unit

from softindex.errors import InputError, MethodError, UnknownIdError
from softindex.mol import METHODS, SAMPLE_METHODS, ItemSide, MixtureIndex, QueryWeights, SimilaritySpec, build


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("ids", [None, "integers", "strings"])
def test_a_loaded_index_gives_the_same_answers(tmp_path, kind, mmap, ids):
    model = similarity(kind)
    names = {None: None, "integers": np.arange(200) * 7 + 3, "strings": [f"item {i}" for i in range(200)]}[ids]
    made = build(model, np.arange(200), ids=names, clusters=14)
    made.save(tmp_path / "kept")
    opened = load(tmp_path / "kept", mmap=mmap)
    queries = queries_of(model)
    assert len(opened) == 200
    for method in METHODS:
        assert_same(made.top_k(queries, 7, method=method), opened.top_k(queries, 7, method=method))
    for method in SAMPLE_METHODS:
        options = {"temperature": 1.0, "method": method, "seed": 3}
        assert_same(made.sample(queries, 5, **options), opened.sample(queries, 5, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_adding_and_removing_is_building_from_what_is_left(kind):
    model = similarity(kind, 300)
    queries, ids = queries_of(model), np.arange(300) + 1000
    made = build(model, np.arange(200), ids=ids[:200])
    made.add(np.arange(200, 300), ids[200:])
    complete = build(model, np.arange(300), ids=ids)
    assert_same(made.top_k(queries, 9), complete.top_k(queries, 9))
    gone = np.unique(complete.top_k(queries, 3).ids)
    made.remove(gone)
    left = np.setdiff1d(np.arange(300), gone - 1000)
    assert_same(made.top_k(queries, 9), build(model, left, ids=ids[left]).top_k(queries, 9))
    with pytest.raises(UnknownIdError):
        made.remove([int(gone[0])])


def test_row_numbers_go_on_and_are_never_used_twice():
    model = similarity("logits", 60)
    made = build(model, np.arange(50))
    made.add(np.arange(50, 55))
    assert made.ids.tolist() == list(range(55))
    made.remove([54, 3])
    made.add(np.arange(55, 57))
    assert made.ids.tolist() == [i for i in range(57) if i not in (54, 3)]
    with pytest.raises(InputError, match="without ids"):
        made.add(np.arange(57, 58), [5000])


@pytest.mark.parametrize("names", [["a", "b", "c", "d"], [10, 11, 12, 13]])
def test_an_index_with_ids_grows_as_often_as_it_likes(tmp_path, names):
    made = similarity("logits", n=4)
    index = build(made, np.arange(2), ids=names[:2])
    index.add(np.array([2]), ids=names[2:3])
    with pytest.raises(InputError, match="pass ids"):
        index.add(np.array([3]))
    index.save(tmp_path / "kept")
    kept = load(tmp_path / "kept")
    kept.add(made.item_side(np.array([3])), ids=names[3:])
    index.remove({names[0]})
    index.add(np.array([3]), ids=names[3:])
    assert kept.ids.tolist() == names
    assert index.ids.tolist() == names[1:]


def test_a_search_sees_the_items_of_one_moment():
    """Items are added and removed while others search: every id has the score that is stated for it."""
    made = similarity("logits", n=64, d=8)
    queries = queries_of(made)
    scores = truth(made, queries)
    index = build(made, np.arange(32), ids=np.arange(32))
    wrong, ended = [], threading.Event()

    def search():
        while not ended.is_set():
            found = index.top_k(queries, 5, threads=1)
            if not np.allclose(found.scores, np.take_along_axis(scores, found.ids, 1), atol=1e-3):
                wrong.append(found)

    searching = [threading.Thread(target=search) for _ in range(2)]
    for thread in searching:
        thread.start()
    for turn in range(60):
        row = 32 + turn % 32
        index.add(np.array([row]), ids=np.array([row]))
        index.remove([row if turn % 2 else int(index.ids[turn % 30])])
        if turn % 2 == 0:
            index.remove([row])
            missing = np.setdiff1d(np.arange(32), index.ids)
            index.add(missing, ids=missing)
    ended.set()
    for thread in searching:
        thread.join()
    assert not wrong


def test_changes_at_once_are_all_kept():
    """Every thread adds and removes items of its own: none of the changes is lost."""
    made = similarity("logits", n=200, d=4)
    index = build(made, np.arange(8), ids=np.arange(8))

    def change(turn):
        rows = np.arange(8 + 12 * turn, 20 + 12 * turn)
        for row in rows:
            index.add(np.array([row]), ids=np.array([row]))
        index.remove(rows[:3])
        return rows[3:]

    with ThreadPoolExecutor(8) as pool:
        kept = np.concatenate(list(pool.map(change, range(16))))
    assert sorted(index.ids.tolist()) == sorted([*range(8), *kept.tolist()])
    queries = queries_of(made)
    found = index.top_k(queries, 5)
    np.testing.assert_allclose(found.scores, np.take_along_axis(truth(made, queries), found.ids, 1), atol=1e-3)


def test_an_index_says_how_to_move_it_instead_of_being_pickled():
    index = build(similarity("logits", 10), np.arange(10))
    with pytest.raises(TypeError, match=r"index\.save\(path\) and open it with softindex\.load\(path\)\."):
        copy.copy(index)


def test_searches_at_once_leave_the_threads_of_numpy_as_they_were():
    made = similarity("mixture")
    index, queries = build(made, np.arange(200)), queries_of(made)

    def threads_of_blas():
        return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]

    before = threads_of_blas()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: index.top_k(queries, 3, threads=1), range(60)))
    assert threads_of_blas() == before


def test_a_loaded_index_takes_components_of_new_items(tmp_path):
    model = similarity("mixture", 40)
    build(model, np.arange(30)).save(tmp_path / "kept")
    opened = load(tmp_path / "kept")
    with pytest.raises(InputError, match="item_side"):
        opened.add(np.arange(30, 40))
    opened.add(model.item_side(np.arange(30, 40)))
    queries = queries_of(model)
    assert_same(opened.top_k(queries, 5), build(model, np.arange(40)).top_k(queries, 5))


def test_a_rejected_change_changes_nothing():
    model = similarity("mixture", 40)
    made, queries = build(model, np.arange(30), ids=np.arange(30)), queries_of(model)
    before = made.top_k(queries, 5)
    broken = model.item_side(np.arange(30, 40))
    broken.components[4, 1, 2] = np.nan
    changes = [
        lambda: made.add(np.arange(30, 40), np.arange(10)),
        lambda: made.add(np.arange(30, 40)),
        lambda: made.add(np.arange(30, 40), [f"{i}" for i in range(10)]),
        lambda: made.add(broken, np.arange(30, 40)),
        lambda: made.add(ItemSide(model.components[:2], None), [90, 91]),
        lambda: made.add(ItemSide(2 * model.components[:2], model.gates[:2]), [90, 91]),
        lambda: made.add(ItemSide(model.components[:2, :1], model.gates[:2]), [90, 91]),
        lambda: made.remove([3, 77]),
        lambda: made.remove(np.arange(30)),
    ]
    for change in changes:
        with pytest.raises(InputError):
            change()
        assert len(made) == 30
        assert_same(made.top_k(queries, 5), before)


def test_users_have_a_component_of_their_own():
    model = similarity("mixture", users=10)
    queries, users = queries_of(model), np.array([0, 3, 9, 10, 1_000_003, 5])
    made = build(model, np.arange(200))
    found, true = made.top_k(queries, 8, users=users), truth(model, queries, users)
    np.testing.assert_array_equal(found.ids, np.argsort(-true, axis=1)[:, :8])
    for wrong in (None, users[:3], users - 5, users.astype(float)):
        with pytest.raises(InputError, match="users"):
            made.top_k(queries, 8, users=wrong)
    with pytest.raises(InputError, match="leave users out"):
        build(similarity("mixture"), np.arange(5)).top_k(queries, 2, users=users)


def test_bad_arguments_are_refused_in_a_sentence():
    model = similarity("logits")
    made, queries = build(model, np.arange(200)), queries_of(model)
    wrong = [
        ({"k": 0}, "k is 0"),
        ({"k": 201}, "200 are left"),
        ({"k": 5, "exclude": np.arange(196)}, "4 are left"),
        ({"k": 10, "method": "average", "candidates": 9}, "gives at most"),
        ({"k": 10, "method": "per-embedding", "candidates": 1}, "gives at most"),
        ({"k": 10, "method": "combined", "candidates": (1, 3)}, "gives at most"),
        ({"k": 10, "method": "average", "candidates": (30, 30)}, "one number"),
        ({"k": 10, "candidates": 20}, "exact"),
        ({"k": 10, "gap": 0.1}, "exact"),
        ({"k": 10, "method": "average", "gap": -1.0}, "gap is"),
        ({"k": 10, "method": "average", "gap": float("nan")}, "gap is"),
        ({"k": 10, "threads": 0}, "threads"),
        ({"k": 10, "unknown": "skip"}, "unknown is 'skip'"),
    ]
    for options, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            made.top_k(queries, **options)
    with pytest.raises(MethodError, match="brute-force"):
        made.top_k(queries, 3, method="fast")
    with pytest.raises(UnknownIdError):
        made.top_k(queries, 3, exclude=[200])
    with pytest.raises(InputError, match="id 'film-1' is already in this index"):
        build(similarity(), np.arange(2), ids=["film-0", "film-1"]).add(np.arange(2, 4), ids=["film-2", "film-1"])
    with pytest.raises(InputError, match="different ids but k"):
        made.rank(queries, [1, 2, 2], 3)
    with pytest.raises(UnknownIdError):
        made.rank(queries, [1, 2, -1], 3)
    with pytest.raises(InputError, match="the list of ids has 2 entries for 6 queries"):
        made.rank(queries, [[1, 2], [2, 3]], 1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda queries: queries[:, :2], "shape"),
        (lambda queries: queries[:, :, :4], "shape"),
        (lambda queries: queries[:0], "shape"),
        (lambda queries: 1.5 * queries, "length 1.5"),
        (lambda queries: np.where(np.arange(5) == 2, np.nan, queries), "NaN"),
        (lambda queries: np.where(np.arange(5) == 2, np.inf, queries), "NaN"),
        (lambda queries: queries.astype(str), "floats"),
    ],
)
def test_bad_queries_are_refused_in_a_sentence(change, sentence):
    model = similarity("logits")
    with pytest.raises(InputError, match=sentence):
        build(model, np.arange(200)).top_k(change(queries_of(model)), 3)


def test_a_similarity_that_does_not_fit_itself_is_refused():
    rng = np.random.default_rng(0)
    good = unit(rng.standard_normal((5, 2, 4)))

    def spec(**changes):
        settings = {
            "query_components": 3,
            "item_components": 2,
            "component_dim": 4,
            "temperature": 0.1,
            "normalised": True,
            "gate": gate(rng, 6),
            "query": None,
            "item_gates": False,
        }
        return SimilaritySpec(**{**settings, **changes})

    nan = gate(rng, 6)
    nan.first[2, 3] = np.nan
    wrong = [
        (Given(spec(gate=gate(rng, 5)), good), "shape"),
        (Given(spec(gate=nan), good), "NaN"),
        (Given(spec(temperature=0.0), good), "temperature"),
        (Given(spec(query_components=0), good), "query_components"),
        (Given(spec(item_gates=True, gate=None), good), "gate"),
        (Given(spec(), good, np.ones((5, 6), np.float32)), "gates"),
        (Given(spec(item_gates=True), good), "gates"),
        (Given(spec(item_gates=True), good, np.ones((5, 5), np.float32)), "shape"),
        (Given(spec(item_gates=True), good, np.full((5, 6), np.inf, np.float32)), "gate"),
        (Given(spec(), good[:, :1]), "shape"),
        (Given(spec(), 3 * good), "length"),
        (Given(spec(), np.full_like(good, np.nan)), "NaN"),
    ]
    for model, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            build(model, np.arange(5))
    with pytest.raises(InputError, match="the similarity is of type object"):
        build(object(), np.arange(5))
    with pytest.raises(InputError, match="no items"):
        build(Given(spec(), good), np.arange(0))
    with pytest.raises(InputError, match="more than once"):
        build(Given(spec(), good), np.arange(5), ids=[1, 2, 3, 3, 4])


def test_a_gate_that_overflows_is_refused():
    model = similarity("logits", 20, parts=(8, 8), scale=1e5, temperature=1e-29)
    with pytest.raises(InputError, match="overflow"):
        build(model, np.arange(20)).top_k(queries_of(model), 3)


def test_an_index_is_served_without_torch(tmp_path):
    model = similarity("mixture")
    build(model, np.arange(200)).save(tmp_path / "kept")
    np.save(tmp_path / "queries.npy", queries_of(model))
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from softindex import mol
from softindex.store import load
index = mol.index.from_stored(load({str(tmp_path / "kept")!r}))
found = index.top_k(np.load({str(tmp_path / "queries.npy")!r}), 5)
try:
    mol.MixtureOfLogits
except ImportError as error:
    print(error)
print(found.ids.tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ids = build(model, np.arange(200)).top_k(queries_of(model), 5).ids.tolist()
    assert done.stdout.splitlines() == [
        'MixtureOfLogits needs torch; run pip install ".[mol]" in a checkout of softindex.',
        str(ids),
    ]


def test_a_dot_product_without_a_query_side_takes_plain_vectors():
    rng = np.random.default_rng(0)
    items, queries = rng.standard_normal((50, 1, 8)).astype(np.float32), rng.standard_normal((4, 8)).astype(np.float32)
    made = build(Given(SimilaritySpec(1, 1, 8, 1.0, False, None, None, False), items), np.arange(50))
    found = made.top_k(queries, 6)
    np.testing.assert_array_equal(found.ids, np.argsort(-(queries @ items[:, 0].T), axis=1)[:, :6])
    assert_same(found, made.top_k(queries[1], 6), row=1)


def test_it_says_what_it_holds():
    made = build(similarity("mixture"), np.arange(200))
    assert isinstance(made, MixtureIndex)
    assert repr(made) == "<softindex.mol.MixtureIndex: 200 items in 28 clusters, 3 x 2 components of 5>"
    assert isinstance(made.spec.query, QueryWeights)


@pytest.mark.parametrize("ids", ["rows", "integers", "strings"])
def test_an_index_that_lost_and_gained_items_is_saved_and_goes_on(tmp_path, ids):
    model = similarity(n=120)
    names = {"rows": None, "integers": np.arange(120) * 5, "strings": np.array([f"item {i}" for i in range(120)])}[ids]
    named = np.arange(120) if names is None else names

    def some(rows):
        return None if names is None else names[rows]

    made, queries = build(model, np.arange(100), ids=some(np.arange(100))), queries_of(model)
    # The last rows go too: their numbers are not given again.
    for number, change in enumerate((named[[5, 99, 98]], np.arange(100, 110), named[[0, 109]], np.arange(110, 120))):
        if number % 2:
            made.add(change, some(change))
        else:
            made.remove(change)
        made.save(tmp_path / "kept")
        opened = load(tmp_path / "kept", mmap=number < 2)
        np.testing.assert_array_equal(opened.ids, made.ids)
        assert_same(made.top_k(queries, 7), opened.top_k(queries, 7))
        made = opened
        made._similarity = model
    assert set(made.ids.tolist()) == set(np.delete(named, [0, 5, 98, 99, 109]).tolist())
