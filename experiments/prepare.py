"""Turn public data sets, as their authors publish them, into the files that the experiments read.

    python -m experiments.prepare wikitext-2 wikitext-2/ data/wikitext-2/
    python -m experiments.prepare beauty reviews_Beauty_5.json.gz data/Beauty.txt.gz
    python -m experiments.prepare movielens-100k ml-100k/u.data data/MovieLens-100K.tsv.gz

- wikitext-2: the folder of wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens (Merity et al., 2016).
- beauty: the 5-core reviews of Amazon's category Beauty (McAuley et al., 2015), one JSON object per line.  Each user's
  items are sorted by time; those of the same day keep the order of the file.
- movielens-100k: u.data of MovieLens 100K (Harper and Konstan, 2015): user, item, rating, time.

Nothing is downloaded.  docs/training-results.md says how many users, items and words to expect.
"""

import argparse
import gzip
import json
from pathlib import Path

from experiments.harness.ratings import COLUMNS, open_lines


def text(source, target):
    """Compress the three parts of WikiText-2 under the names that experiments.language_model reads."""
    target.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        with open_lines(source / f"wiki.{part}.tokens") as lines:
            _write(target / f"{part}.txt.gz", lines)


def reviews(source, target):
    """One line per user: the user's number, then the numbers of the items in order of time."""
    events = {}
    with open_lines(source) as lines:
        for line in lines:
            review = json.loads(line)
            events.setdefault(review["reviewerID"], []).append((review["unixReviewTime"], review["asin"]))
    numbers = {}
    rows = []
    for user, taken in enumerate(events.values(), start=1):
        taken.sort(key=lambda event: event[0])
        items = [numbers.setdefault(item, len(numbers) + 1) for _, item in taken]
        rows.append(" ".join(map(str, [user, *items])) + "\n")
    _write(target, rows)
    print(f"{len(rows):,} users, {len(numbers):,} items")


def ratings(source, target):
    """Compress the ratings as they are; SystemExit if a line is not a rating."""
    with open_lines(source) as lines:
        rows = list(lines)
    for number, row in enumerate(rows, start=1):
        if row.count("\t") != COLUMNS - 1:
            raise SystemExit(f"line {number} of {source} is not a rating; expected user, item, rating, time.")
    _write(target, rows)
    print(f"{len(rows):,} ratings")


def _write(path, lines):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(lines)


SETS = {"wikitext-2": text, "beauty": reviews, "movielens-100k": ratings}


def main():
    """Prepare one data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    SETS[options.set](options.source, options.target)


if __name__ == "__main__":
    main()
