"""Rare words are the classes, and the words around them the features."""

import numpy as np

from experiments.harness import contexts as harness


def test_a_rare_word_is_described_by_its_neighbours(monkeypatch):
    monkeypatch.setattr(harness, "COMMON", 1)
    monkeypatch.setattr(harness, "AROUND", 2)
    # Word 0 is the most frequent; word 4 never occurs in the first part.
    train, test = np.array([0, 1, 0, 2, 0, 1, 0]), np.array([4, 2, 0, 3])
    (first, _, last), classes = harness.contexts([train, train, test], 5, (10, 10, 10))
    assert classes == 2
    shown, labels = first
    # Word 1 occurs twice and word 2 once; 5 is a place outside of the text.
    assert labels.tolist() == [[0], [1], [0]]
    assert shown.tolist() == [[5, 0, 0, 2], [1, 0, 0, 1], [2, 0, 0, 5]]
    assert last[1].tolist() == [[1]]
    assert last[0].tolist() == [[5, 4, 0, 3]]


def test_no_more_examples_than_asked_for():
    texts = [np.random.default_rng(0).integers(5000, size=9000) for _ in range(3)]
    parts, _ = harness.contexts(texts, 5000, (50, 20, 20))
    assert [len(shown) for shown, _ in parts] == [50, 20, 20]
