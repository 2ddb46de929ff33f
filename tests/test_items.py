"""`index.items` shows the stored arrays in the order of `index.ids`."""

import numpy as np

import softindex


def test_items_are_in_the_order_of_ids():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, 4)).astype(np.float32)
    log_bias = rng.standard_normal(60).astype(np.float32)
    index = softindex.build(vectors, log_bias=log_bias, clusters=5)
    items = index.items
    np.testing.assert_array_equal(items.vectors, vectors[index.ids])
    np.testing.assert_array_equal(items.log_bias, log_bias[index.ids])
    np.testing.assert_array_equal(np.diff(items.offsets), index.sizes)


def test_means_are_those_of_the_clusters():
    vectors = np.random.default_rng(1).standard_normal((60, 4)).astype(np.float32)
    items = softindex.build(vectors, clusters=5).items
    assert items.log_bias is None
    for mean, begin, end in zip(items.means, items.offsets[:-1], items.offsets[1:], strict=True):
        np.testing.assert_allclose(mean, items.vectors[begin:end].mean(axis=0), atol=1e-5)
