""".parquet files."""

import numpy as np
import pytest
from vector_files import VECTORS, WORDS

from softindex.errors import InputError
from softindex.vectors import read

pytestmark = pytest.mark.filterwarnings("ignore:.*softindex keeps float32:UserWarning")
"""tests/test_vectors.py has what is noted."""


class TestParquet:
    @pytest.fixture(autouse=True)
    def library(self):
        self.pyarrow = pytest.importorskip("pyarrow")
        self.parquet = pytest.importorskip("pyarrow.parquet")

    def write(self, path, row_group_size=None, **columns):
        self.parquet.write_table(self.pyarrow.table(columns), path, row_group_size=row_group_size)
        return path

    def lists(self, vectors, kind="float32"):
        value_type = self.pyarrow.type_for_alias(kind)
        return self.pyarrow.array(vectors.tolist(), self.pyarrow.list_(value_type))

    def fixed(self, vectors):
        return self.pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])

    @pytest.mark.parametrize("kind", ["float32", "float64", "halffloat"])
    def test_a_column_of_lists_is_read_with_its_ids(self, kind, tmp_path):
        vectors = VECTORS.astype(np.float16 if kind == "halffloat" else np.float32)
        path = self.write(
            tmp_path / "v.parquet",
            2,
            id=WORDS,
            emb=self.lists(vectors.astype(np.float16) if kind == "halffloat" else vectors, kind),
            price=[1.0] * 6,
        )
        source = read(path)
        assert source.vectors.dtype == np.float32
        np.testing.assert_array_equal(source.vectors, vectors.astype(np.float32))
        assert source.ids.tolist() == WORDS

    def test_fixed_size_and_large_lists_are_read_in_many_blocks(self, tmp_path):
        vectors = np.random.default_rng(3).standard_normal((20_001, 3)).astype(np.float32)
        large = self.lists(vectors).cast(self.pyarrow.large_list(self.pyarrow.float32()))
        for column in (self.fixed(vectors), large):
            path = self.write(tmp_path / "v.parquet", 7001, emb=column, ids=np.arange(20_001)[::-1])
            source = read(path)
            np.testing.assert_array_equal(source.vectors, vectors)
            assert source.ids.dtype == np.int64
            assert source.ids[0] == 20_000

    def test_one_column_per_dimension_is_read_in_order(self, tmp_path):
        columns = {f"x{j}": VECTORS[:, j].astype(np.float64 if j else np.float32) for j in range(4)}
        source = read(self.write(tmp_path / "v.parquet", 4, name=WORDS, id=range(6), **columns))
        np.testing.assert_array_equal(source.vectors, VECTORS)
        assert source.ids.tolist() == list(range(6))

    def test_dictionary_encoded_ids_are_strings(self, tmp_path):
        ids = self.pyarrow.array(WORDS).dictionary_encode()
        assert read(self.write(tmp_path / "v.parquet", id=ids, v=self.fixed(VECTORS))).ids.tolist() == WORDS

    def test_several_list_columns_are_settled_by_name(self, tmp_path):
        path = self.write(tmp_path / "v.parquet", a=self.fixed(VECTORS), b=self.fixed(VECTORS * 2))
        with pytest.raises(InputError, match=r"v\.parquet::name.* a fixed_size_list"):
            read(path)
        np.testing.assert_array_equal(read(f"{path}::b").vectors, VECTORS * 2)
        path = self.write(tmp_path / "w.parquet", a=self.fixed(VECTORS), embeddings=self.fixed(VECTORS * 2))
        np.testing.assert_array_equal(read(path).vectors, VECTORS * 2)

    def test_a_float64_beyond_float32_becomes_inf_for_the_next_check(self, tmp_path):
        path = self.write(tmp_path / "v.parquet", a=self.lists(np.array([[1e300, 0.0]]), "float64"))
        assert np.isinf(read(path).vectors[0, 0])

    def test_bad_tables_are_refused(self, tmp_path):
        arrow = self.pyarrow
        floats = arrow.list_(arrow.float32())
        for columns, name, sentence in [
            ({"a": arrow.array([[1, 2], [3]], floats)}, None, "row 1 of .* has 1 dimensions but row 0 has 2"),
            ({"a": arrow.array([[1, 2], None], floats)}, None, "row 1 of .* has no value"),
            ({"a": arrow.array([[1, 2], [3, None]], floats)}, None, "row 1 of .* missing value"),
            ({"a": arrow.array([[], []], floats)}, None, "one dimension"),
            ({"a": arrow.array([], floats)}, None, "0 rows"),
            ({"a": arrow.array([1.0, None])}, None, "row 1 of .* has no value"),
            ({"a": [1, 2], "b": ["x", "y"]}, None, "no matrix.* a int64, b string"),
            ({"a": [1.0, 2.0]}, "a", "column 'a' of .* is double; expected a list of numbers"),
            ({"a": [1.0, 2.0]}, "z", "nothing named 'z'"),
            ({"a": [1.0, 2.0], "id": [1, 1]}, None, "id 1 is given more than once"),
            ({"a": [1.0, 2.0], "id": arrow.array([1, None])}, None, "NoneType"),
            ({"a": [1.0, 2.0], "id": [0.5, 1.5]}, None, "float"),
        ]:
            path = self.write(tmp_path / "v.parquet", **columns)
            with pytest.raises(InputError, match=sentence):
                read(path if name is None else f"{path}::{name}")

    def test_a_ragged_row_in_a_later_block_is_named(self, tmp_path):
        rows = [[1.0, 2.0]] * 10_000
        rows[9_000] = [1.0]
        with pytest.raises(InputError, match="row 9000 of"):
            read(self.write(tmp_path / "v.parquet", a=rows))
