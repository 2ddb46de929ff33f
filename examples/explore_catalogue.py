"""Recommend by sampling instead of always showing the best items, and log the propensity of each recommendation.

Build an index of item vectors, draw a slate of different items per user, leave out what the user has already seen, and
write the log-probability of every shown item: off-policy estimators need it later.
"""

import csv
from pathlib import Path

import numpy as np

import softindex

ITEMS, USERS, DIM, SLATE = 20_000, 5, 32, 4
TEMPERATURE = 0.2


def main():
    """Build, sample, and write the log."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((ITEMS, DIM), dtype=np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    names = [f"item-{number}" for number in range(ITEMS)]
    users = items[rng.integers(ITEMS, size=USERS)]
    index = softindex.build(items, ids=names)

    # Here everyone has seen their ten best items; in practice this comes from your history.
    seen = index.top_k(users, 10).ids.tolist()

    slates = index.sample(users, SLATE, temperature=TEMPERATURE, replace=False, exclude=seen, seed=42)
    log = Path("propensities.csv")
    with log.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "position", "item", "log_propensity"])
        for user in range(USERS):
            assert not set(slates.ids[user]) & set(seen[user])
            for position in range(SLATE):
                # Without replacement, log_prob is that of the step: given the items shown above it.
                writer.writerow([user, position, slates.ids[user, position], slates.log_prob[user, position]])
    print(f"{USERS} slates of {SLATE} items written to {log}")
    print(f"estimated distance from the exact softmax: at most {np.max(slates.error):.3f} total variation")
    print(f"items scored per user: {np.mean(slates.items_scored):,.0f} of {ITEMS:,}")


if __name__ == "__main__":
    main()
