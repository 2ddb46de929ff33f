"""Any sequence of changes, restrictions, saves and loads leaves an index that answers as a plain table would."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import softindex

D, TEMPERATURE = 4, 0.5
IDS = st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True)
SEEDS = st.integers(0, 1000)


def rows(count, seed):
    return np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


class Catalogue(RuleBasedStateMachine):
    """A live catalogue beside a dictionary that holds what it should."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "live"
        first = rows(12, 0)
        self.live = softindex.open(self.path, create=softindex.build(first, clusters=3, threads=1))
        self.held = dict(enumerate(first))

    def teardown(self):
        self.live.close()
        self.folder.cleanup()

    @rule(ids=IDS, seed=SEEDS)
    def upsert(self, ids, seed):
        vectors = rows(len(ids), seed)
        self.live.upsert(ids, vectors)
        self.held |= dict(zip(ids, vectors, strict=True))

    @precondition(lambda self: len(self.held) > 3)
    @rule(data=st.data())
    def remove(self, data):
        gone = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=2, unique=True))
        self.live.remove(gone)
        for one in gone:
            del self.held[one]

    @rule()
    def compact(self):
        self.live.compact()

    @rule()
    def reopen(self):
        self.live.close()
        self.live = softindex.open(self.path)

    @rule(seed=SEEDS)
    def save_and_load(self, seed):
        index = self.live.snapshot()
        with tempfile.TemporaryDirectory() as folder:
            index.save(Path(folder) / "index")
            again = softindex.load(Path(folder) / "index", mmap=False)
        query = rows(1, seed)[0]
        assert set(again.top_k(query, 3).ids.tolist()) == set(index.top_k(query, 3).ids.tolist())
        self.check(again, sorted(self.held), query)

    @rule(data=st.data(), seed=SEEDS)
    def restrict(self, data, seed):
        kept = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
        query, index = rows(1, seed)[0], self.live.snapshot()
        self.check(index.subset(kept), kept, query)
        rest = sorted(set(self.held) - set(kept))
        if rest:
            draws = index.sample(query, 20, temperature=TEMPERATURE, exclude=kept, seed=seed)
            assert set(draws.ids.tolist()) <= set(rest)

    @invariant()
    def answers_as_the_table_does(self):
        self.check(self.live.snapshot(), sorted(self.held), rows(1, 7)[0])

    def check(self, index, ids, query):
        """The exact law is the softmax of these items, the best item is the best, and draws are among them."""
        logits = np.array([self.held[one] @ query.astype(np.float64) for one in ids]) / TEMPERATURE
        softmax = logits - np.logaddexp.reduce(logits)
        found = index.log_prob(query, ids, temperature=TEMPERATURE, method="exact")
        np.testing.assert_allclose(found, softmax, atol=1e-4)
        assert self.held[int(index.top_k(query, 1).ids[0])] @ query >= logits.max() * TEMPERATURE - 1e-5
        assert set(index.sample(query, 5, temperature=TEMPERATURE, seed=0).ids.tolist()) <= set(ids)
        assert len(index) == len(ids)


TestCatalogue = Catalogue.TestCase
# The same examples every time: a hundred times as many are a matter of this line.
TestCatalogue.settings = settings(max_examples=8, stateful_step_count=10, deadline=None, derandomize=True)
