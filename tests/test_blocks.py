"""Blocks cover every row once, in order."""

from hypothesis import given
from hypothesis import strategies as st

from softindex.blocks import blocks, rows_per_block


@given(st.integers(0, 300), st.integers(1, 400))
def test_blocks_cover_every_row_once_and_in_order(n, step):
    found = list(blocks(n, step))
    assert [row for part in found for row in range(part.start, part.stop)] == list(range(n))
    assert all(part.stop - part.start == step for part in found[:-1])
    assert all(0 < part.stop - part.start <= step for part in found)


@given(st.integers(1, 1 << 24), st.integers(0, 1 << 24), st.integers(1, 512))
def test_a_block_holds_about_as_many_values_as_it_may(values, width, least):
    rows = rows_per_block(values, width, least=least)
    assert rows >= least
    assert rows == least or rows * max(width, 1) <= values < (rows + 1) * max(width, 1)
