"""Data sets as their authors publish them become files that the experiments read."""

import gzip
import json

import pytest

from experiments import prepare
from experiments.harness.ratings import read_ratings
from experiments.harness.sequences import read
from experiments.language_model import read as read_text


def test_a_users_reviews_become_items_in_order_of_time(tmp_path):
    rows = [("a", "x", 30), ("b", "y", 5), ("a", "z", 10), ("a", "y", 30), ("b", "x", 4)]
    source, target = tmp_path / "reviews.json.gz", tmp_path / "Beauty.txt.gz"
    with gzip.open(source, "wt") as file:
        file.writelines(
            json.dumps({"reviewerID": user, "asin": item, "unixReviewTime": time}) + "\n" for user, item, time in rows
        )
    prepare.reviews(source, target)
    # Numbered as they come: z, x, y.  x and y have the same time and keep the order of the file.
    assert [items.tolist() for items in read(target)] == [[0, 1, 2], [1, 2]]


def test_ratings_stay_as_they_are(tmp_path):
    source, target = tmp_path / "u.data", tmp_path / "MovieLens-100K.tsv.gz"
    source.write_text("1\t9\t4\t50\n2\t7\t5\t60\n1\t7\t3\t40\n")
    prepare.ratings(source, target)
    assert [events[:, 0].tolist() for events in read_ratings(target)] == [[0, 1], [0]]
    source.write_text("1,9,4,50\n")
    with pytest.raises(SystemExit, match="line 1"):
        prepare.ratings(source, target)


def test_a_text_keeps_its_words(tmp_path):
    (tmp_path / "raw").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "raw" / f"wiki.{part}.tokens").write_text(" = One = \n a b a \n", encoding="utf-8")
    prepare.text(tmp_path / "raw", tmp_path / "wikitext-2")
    parts, words = read_text(tmp_path / "wikitext-2")
    # Five different words, the end of a line and <unk>.
    assert words == 6
    assert [len(part) for part in parts] == [8, 8, 8]
