"""Log what a recommender shows, and estimate from the log what another temperature would have earned.

    python off_policy.py

Users click on items of a kind that the recommender does not know.  It draws a slate of three items for each user and
logs them with their log-probabilities.  A week later somebody asks what a lower temperature would earn.
"""

import numpy as np

import softindex
from softindex import decisions

ITEMS, USERS, DIM, SLATE = 2_000, 8_000, 16, 3
LOGGED, ASKED = 3.0, 2.4


def main():
    """Log, check the log, and compare an estimate with what a trial with real users would show."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((ITEMS, DIM)).astype(np.float32)
    users = rng.standard_normal((USERS, DIM)).astype(np.float32)
    taste = rng.standard_normal(DIM)
    appeal = 1 / (1 + np.exp(2 - items @ taste / 2))
    index = softindex.build(items)

    shown = index.sample(users, SLATE, temperature=LOGGED, replace=False, seed=1)
    log = decisions.Log("decisions")
    names = log.append(users, shown, temperature=LOGGED, replace=False)
    log.add_rewards(names, (rng.random(shown.ids.shape) < appeal[shown.ids]).astype(float))
    print(f"every propensity comes out the same: {decisions.replay(log, index).intact}")

    scored = decisions.score(log, decisions.Policy(index, ASKED))
    print(decisions.snips(scored))

    trial = index.sample(users, SLATE, temperature=ASKED, replace=False, seed=2)
    print(f"a trial of the other temperature: {appeal[trial.ids].sum(axis=1).mean():.4f}")


if __name__ == "__main__":
    main()
