"""Ids, queries, numbers and biases are judged at the door, each with a sentence for what is wrong."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matrices import matrices, matrix
from softindex.arguments import (
    check_count,
    check_ids,
    check_per_item,
    check_queries,
    check_seed,
    check_temperature,
    check_threads,
)
from softindex.errors import InputError


class TestIds:
    def test_none_stays_none(self):
        assert check_ids(None, 3) is None

    @pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64, ">i8", np.int64])
    def test_integers_become_int64(self, dtype):
        ids = check_ids(np.array([3, 1, 2], dtype), 3)
        assert ids.dtype == np.int64
        assert ids.tolist() == [3, 1, 2]

    @pytest.mark.parametrize("ids", [[-5, 0, 2**62], (1, 2, 3), range(3), [np.int32(1), 2, np.uint8(3)]])
    def test_lists_of_integers_are_fine_negative_ones_too(self, ids):
        assert check_ids(ids, 3).tolist() == [int(one) for one in ids]

    @pytest.mark.parametrize(
        "ids",
        [
            ["a", "bcd", "日本"],
            np.array(["a", "bcd", "日本"]),
            np.array(["a", "bcd", "日本"], dtype=object),
            np.array(["a", "bcd", "日本"]).astype(">U7"),
            ("a", np.str_("bcd"), "日本"),
        ],
    )
    def test_strings_become_a_native_string_array(self, ids):
        table = check_ids(ids, 3)
        assert table.dtype.kind == "U"
        assert table.dtype.isnative
        assert table.tolist() == ["a", "bcd", "日本"]

    def test_numpy_variable_width_strings_are_strings(self):
        string_type = pytest.importorskip("numpy.dtypes").__dict__.get("StringDType")
        if string_type is None:
            pytest.skip("this NumPy has no variable-width strings")
        assert check_ids(np.array(["a", "bc"], dtype=string_type()), 2).tolist() == ["a", "bc"]

    def test_the_result_does_not_follow_the_callers_array(self):
        for mine in (np.array([1, 2, 3]), np.array(["a", "b", "c"])):
            table = check_ids(mine, 3)
            before = table.tolist()
            mine[0] = mine[1]
            assert table.tolist() == before
            assert table.flags.c_contiguous

    def test_strided_ids_are_fine(self):
        assert check_ids(np.arange(10)[::-3], 4).tolist() == [9, 6, 3, 0]

    @pytest.mark.parametrize(
        ("ids", "sentence"),
        [
            ([1, 2], "2 ids were given for 3 vectors"),
            (np.arange(3)[:, None], "shape"),
            ("abc", "expected a list or an array"),
            ({1, 2, 3}, "expected a list or an array"),
            ([1, "b", 3], "all integers or all strings"),
            ([True, False, 2], "bool"),
            ([1, None, 3], "NoneType"),
            (np.array([True, False, True]), "bool"),
            ([1.0, 2.0, 3.0], "float"),
            (np.array([1.0, 2.0, 3.0]), "float64"),
            (np.array([b"a", b"b", b"c"]), "expected integers or strings"),
            ([b"a", b"b", b"c"], "bytes"),
            (["a", "b", np.nan], "all integers or all strings"),
            ([1, 2, 2**63], "fit int64"),
            (np.array([1, 2, 2**63], np.uint64), "fit int64"),
            (["a", "b", "c\0"], "NUL"),
            ([3, 1, 3], "id 3 is given more than once"),
            (np.array([-7, 1, -7]), "id -7 is given more than once"),
            (["a", "b", "a"], "id 'a' is given more than once"),
            ([[1, 2], [3], [4]], "list"),
        ],
    )
    def test_bad_ids_are_refused(self, ids, sentence):
        with pytest.raises(InputError, match=sentence):
            check_ids(ids, 3)

    def test_one_enormous_string_among_many_does_not_take_all_memory(self):
        with pytest.raises(InputError, match="longest of 10000 ids has 1000000 characters"):
            check_ids([str(i) for i in range(9_999)] + ["x" * 1_000_000], 10_000)

    @given(st.lists(st.integers(-4, 4), min_size=1) | st.lists(st.text("ab", max_size=2), min_size=1))
    def test_duplicates_are_found_exactly(self, ids):
        if len(set(ids)) == len(ids):
            assert check_ids(ids, len(ids)).tolist() == ids
        else:
            with pytest.raises(InputError, match="more than once") as refusal:
                check_ids(ids, len(ids))
            named = str(refusal.value).split()[1]
            assert [repr(one) for one in ids].count(named) > 1


class TestQueries:
    def test_a_good_query_is_copied_as_it_is(self):
        """Another thread may change it during the call."""
        query = matrix(1, 8)[0]
        block, single = check_queries(query, 8)
        assert single
        assert block.shape == (1, 8)
        assert np.array_equal(block[0], query)
        assert not np.shares_memory(block, query)

    def test_a_good_batch_is_copied_unless_it_is_read_only(self):
        queries = matrix(6, 8)
        block, single = check_queries(queries, 8)
        assert not single
        assert np.array_equal(block, queries)
        assert not np.shares_memory(block, queries)
        queries.flags.writeable = False
        assert np.shares_memory(check_queries(queries, 8)[0], queries)

    @pytest.mark.parametrize(
        "query",
        [
            [1.0, 0.5, 0.0],
            [1, 0, 0],
            (1, 0, 0),
            np.array([1, 0, 0], np.int8),
            np.array([1, 0, 0], np.uint64),
            np.array([1, 0.5, 0], np.float64),
            np.array([1, 0.5, 0], np.float16),
            np.array([1, 0.5, 0], ">f4"),
            np.arange(6, dtype=np.float32)[::2],
        ],
    )
    def test_plausible_queries_are_cast(self, query):
        for asked, expect_single in (
            (query, True),
            ([list(query)] * 2, False),
            (np.array([query] * 2), False),
        ):
            block, single = check_queries(asked, 3)
            assert single is expect_single
            assert block.dtype == np.float32
            assert block.dtype.isnative
            assert block.flags.carray or not block.flags.writeable
            np.testing.assert_array_equal(block[-1], np.asarray(query, np.float64))

    def test_a_read_only_query_is_fine(self):
        query = matrix(1, 3)[0]
        query.setflags(write=False)
        assert check_queries(query, 3)[0].tolist() == [query.tolist()]

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_the_wrong_dimension_is_stated_with_the_right_one(self, dtype):
        sentence = "query has 64 dimensions but this index has 128; encode it with the same model."
        with pytest.raises(InputError, match=sentence):
            check_queries(np.zeros(64, dtype), 128)
        with pytest.raises(InputError, match="queries have 64 dimensions but this index has 128"):
            check_queries(np.zeros((2, 64), dtype), 128)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_not_finite_are_named(self, bad, dtype):
        queries = matrix(4, 3, dtype)
        queries[2, 1] = bad
        with pytest.raises(InputError, match=f"query 2 has {bad} in column 1"):
            check_queries(queries, 3)
        with pytest.raises(InputError, match=f"the query has {bad} in column 1"):
            check_queries(queries[2], 3)

    def test_a_double_too_large_for_float32_is_refused(self):
        with pytest.raises(InputError, match="expected finite float32"):
            check_queries([1e39, 0.0], 2)

    @pytest.mark.parametrize("value", [1.1e15, 1e25, 3e38])
    def test_a_query_so_long_that_scores_overflow_is_refused(self, value):
        query = np.array([value, 0, value], np.float32)
        with pytest.raises(InputError, match=r"the query has length .* rescale"):
            check_queries(query, 3)
        with pytest.raises(InputError, match="query 1 has length"):
            check_queries(np.stack([query * 0, query]), 3)

    def test_long_queries_are_fine_together_when_each_is_fine(self):
        queries = np.full((1000, 1), 0.99e15, np.float32)
        assert np.array_equal(check_queries(queries, 1)[0], queries)

    @pytest.mark.parametrize(
        "queries",
        [
            np.zeros((0, 3), np.float32),
            np.zeros((0, 3)),
            [],
            [[]],
            np.float32(3),
            5.0,
            None,
            np.zeros((2, 2, 3), np.float32),
            [True, False, True],
            [1j, 0, 0],
            ["1", "2", "3"],
            "abc",
            [1, 2, 10**400],
            [1.0, 2.0, 10**400],
            [[1, 2, 3], [1, 2]],
            np.array([1, 2, 3], object),
            np.ma.masked_equal(np.ones(3, np.float32), 1),
        ],
    )
    def test_things_that_are_no_query_are_refused(self, queries):
        with pytest.raises(InputError):
            check_queries(queries, 3)

    @settings(max_examples=200)
    @given(
        matrices(
            [np.float16, np.float32, np.float64],
            hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=4),
            [0.0, -1.5, 1e16, 1e-40, np.nan, np.inf],
        ),
        st.integers(1, 4),
    )
    def test_what_passes_is_finite_contiguous_and_equal(self, queries, dim):
        try:
            block, single = check_queries(queries, dim)
        except InputError:
            return
        assert block.shape == (1 if single else len(queries), dim)
        assert block.flags.c_contiguous
        np.testing.assert_array_equal(block, queries.astype(np.float32).reshape(-1, dim))
        assert (np.einsum("ij,ij->i", block, block, dtype=np.float64) <= 1e30).all()


class TestNumbers:
    @pytest.mark.parametrize(
        "value", [0.1, 1, np.float32(0.5), np.float16(2), np.int64(3), 1e-30, 1e30, np.longdouble(1)]
    )
    def test_a_temperature_becomes_a_float(self, value):
        temperature = check_temperature(value)
        assert type(temperature) is float
        assert temperature == value

    @pytest.mark.parametrize(
        "value",
        [0, 0.0, -1, 1e-31, 1e31, 10**400, np.nan, np.inf, True, "1", None, 1j, np.array(1.0), np.ones(1000)],
    )
    def test_other_temperatures_are_refused(self, value):
        with pytest.raises(InputError, match=r"temperature is .*expected one number"):
            check_temperature(value)

    def test_a_number_too_long_to_print_is_refused_all_the_same(self):
        with pytest.raises(InputError, match="temperature is a huge int"):
            check_temperature(10**5000)

    @pytest.mark.parametrize("value", [1, 7, np.int8(3), np.uint64(9), 2**63 - 1])
    def test_a_count_becomes_an_int(self, value):
        count = check_count(value, "k")
        assert type(count) is int
        assert count == value

    @pytest.mark.parametrize("value", [0, -1, True, np.True_, 1.0, np.float32(2), "3", None, 2**63, np.array(4)])
    def test_other_counts_are_refused_by_name(self, value):
        with pytest.raises(InputError, match=r"^clusters is .*expected one integer of at least 1"):
            check_count(value, "clusters")

    @pytest.mark.parametrize("seed", [0, 5, 2**64 - 1, np.uint64(2**64 - 1), np.int32(7)])
    def test_a_seed_becomes_an_int(self, seed):
        assert type(check_seed(seed)) is int
        assert check_seed(seed) == seed

    def test_no_seed_gives_a_fresh_one(self):
        seeds = {check_seed(None) for _ in range(100)}
        assert len(seeds) == 100
        assert all(0 <= seed < 2**53 for seed in seeds)  # JavaScript rounds larger ones

    @pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "0", np.random.default_rng(0)])
    def test_other_seeds_are_refused(self, seed):
        with pytest.raises(InputError, match="seed is"):
            check_seed(seed)

    def test_no_threads_means_the_cpus_this_process_may_use(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
        assert check_threads(None) == 3
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr(os, "cpu_count", lambda: None)
        assert check_threads(None) == 1
        assert check_threads(np.int64(2)) == 2

    @pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", 10**9])
    def test_other_thread_counts_are_refused(self, threads):
        with pytest.raises(InputError, match="threads is"):
            check_threads(threads)


class TestLogBias:
    def test_none_stays_none(self):
        assert check_per_item(None, 3, name="log_bias") is None

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
    def test_floats_become_a_new_float32_array(self, dtype):
        mine = np.array([0, -2.5, 3], dtype)
        bias = check_per_item(mine, 3, name="log_bias")
        assert bias.dtype == np.float32
        assert bias.tolist() == [0, -2.5, 3]
        assert not np.shares_memory(bias, mine)

    def test_a_list_and_the_limits_are_fine(self):
        assert check_per_item([0.0, 1e6, -1e6], 3, name="log_bias").tolist() == [0, 1e6, -1e6]

    @pytest.mark.parametrize(
        ("bias", "sentence"),
        [
            ([0.0, -np.inf, 0.0], r"item 1 is -inf; .* leave the item out"),
            ([0.0, np.nan, 0.0], "item 1 is nan; .* fix"),
            ([0.0, 0.0, np.inf], "item 2 is inf; .* fix"),
            ([0.0, 0.0, -2e6], "item 2 is -2000000.0"),
            ([0.0, 0.0, 1e300], "item 2 is 1e\\+300"),
            ([1, 2, 3], r"numpy.log\(counts\)"),
            ([0.0, 0.0], "expected \\(3,\\)"),
            (np.zeros((3, 1)), "expected \\(3,\\)"),
            (0.5, "expected \\(3,\\)"),
            (["a", "b", "c"], "expected floats"),
        ],
    )
    def test_bad_biases_are_refused(self, bias, sentence):
        with pytest.raises(InputError, match=sentence):
            check_per_item(bias, 3, name="log_bias")


def test_forked_workers_do_not_get_the_same_fresh_seed():
    import os

    seeds = []
    for _ in range(2):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, check_seed(None).to_bytes(8, "little"))
            os._exit(0)
        os.wait()
        seeds.append(os.read(reader, 8))
        os.close(reader)
        os.close(writer)
    assert seeds[0] != seeds[1]
