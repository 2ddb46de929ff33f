"""Estimators are their definitions, and are right on worlds where the value of every policy is known."""

import itertools

import numpy as np
import pytest
from made_logs import clicks, log_of, made_index, made_queries

import softindex
from softindex import decisions

RNG = np.random.default_rng(5)
N, SLOTS = 400, 3
LOGGED, TARGET = np.log(RNG.uniform(0.05, 0.9, (2, N, SLOTS)))
REWARDS = RNG.random((N, SLOTS)) * (RNG.random((N, SLOTS)) < 0.4)
SLATES = decisions.Scored(REWARDS, LOGGED, TARGET)
ITEMS = decisions.Scored(REWARDS[:, :1], LOGGED[:, :1], TARGET[:, :1])


def weights(form):
    """The weights of each slot, written out."""
    found = np.empty((N, SLOTS))
    for i, j in itertools.product(range(N), range(SLOTS)):
        upto = {"standard": slice(None), "cascade": slice(0, j + 1), "independent": slice(j, j + 1)}[form]
        found[i, j] = np.prod(np.exp(TARGET[i, upto]) / np.exp(LOGGED[i, upto]))
    return found


@pytest.mark.parametrize("form", ["standard", "cascade", "independent"])
def test_slates_by_their_definition(form):
    scored = decisions.Scored(REWARDS, LOGGED, TARGET, logged_positions=LOGGED, target_positions=TARGET)
    w = weights(form)
    np.testing.assert_allclose(decisions.slate_weights(LOGGED, TARGET, form), w, rtol=1e-12)
    value = sum(w[i] @ REWARDS[i] for i in range(N)) / N
    assert decisions.ips(scored, form=form).value == pytest.approx(value, rel=1e-12)
    limited = sum(np.minimum(w[i], 2.0) @ REWARDS[i] for i in range(N)) / N
    assert decisions.clipped(scored, 2.0, form=form).value == pytest.approx(limited, rel=1e-12)
    normalised = sum((w[:, j] @ REWARDS[:, j]) / w[:, j].sum() for j in range(SLOTS))
    assert decisions.snips(scored, form=form).value == pytest.approx(normalised, rel=1e-12)


def test_doubly_robust_by_its_definition():
    predicted, expected = RNG.random((2, N, 1))
    scored = decisions.Scored(REWARDS[:, :1], LOGGED[:, :1], TARGET[:, :1], predicted=predicted, expected=expected)
    w = np.exp(TARGET[:, 0] - LOGGED[:, 0])
    value = np.mean(expected[:, 0] + w * (REWARDS[:, 0] - predicted[:, 0]))
    assert decisions.doubly_robust(scored).value == pytest.approx(value, rel=1e-12)
    limited = np.mean(expected[:, 0] + np.minimum(w, 1.5) * (REWARDS[:, 0] - predicted[:, 0]))
    assert decisions.doubly_robust(scored, limit=1.5).value == pytest.approx(limited, rel=1e-12)
    with pytest.raises(softindex.InputError, match="no predicted rewards"):
        decisions.doubly_robust(ITEMS)


def test_ips_and_doubly_robust_are_unbiased_by_enumeration():
    """Over every action that may have been logged, weighted by its probability: no sampling, so no tolerance for it."""
    index, (query,) = made_index(12), made_queries(1)
    ids = np.arange(12)
    table, _ = clicks(n=12)
    logging = index.log_prob(query, ids, temperature=1.0)
    target = index.log_prob(query, ids, temperature=0.5, method="exact")
    truth = np.exp(target) @ table
    model = np.random.default_rng(0).random(12)
    estimates = {"ips": 0.0, "doubly_robust": 0.0}
    for action in ids:
        scored = decisions.Scored(
            table[[[action]]],
            logging[[[action]]],
            target[[[action]]],
            predicted=model[[[action]]],
            expected=np.array([[np.exp(target) @ model]]),
        )
        for name in estimates:
            estimates[name] += np.exp(logging[action]) * getattr(decisions, name)(scored, repeats=1).value
    assert estimates["ips"] == pytest.approx(truth, rel=1e-6)
    assert estimates["doubly_robust"] == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("form", ["standard", "cascade"])
def test_slate_estimators_are_unbiased_by_enumeration(form):
    """All ordered pairs of six items; the reward of the second depends on the first."""
    index, (query,) = made_index(6), made_queries(1)
    slates = np.array(list(itertools.permutations(range(6), 2)))
    copies = np.tile(query, (len(slates), 1))
    logged = index.log_prob(copies, slates, temperature=1.0, replace=False)
    target = index.log_prob(copies, slates, temperature=0.4, replace=False, method="exact")
    table, _ = clicks(n=6)
    rewards = np.stack([table[slates[:, 0]], table[slates[:, 1]] * table[slates[:, 0]]], axis=1)
    truth = np.exp(target.sum(axis=1)) @ rewards.sum(axis=1)
    weighted = decisions.slate_weights(logged, target, form) * rewards
    assert np.exp(logged.sum(axis=1)) @ weighted.sum(axis=1) == pytest.approx(truth, rel=1e-5)


def test_a_policy_is_evaluated_from_a_log(tmp_path):
    """20,000 decisions; the estimates are within four of their standard errors of the truth: false alarm about 4e-4."""
    index, queries = made_index(), made_queries(20_000)
    table, rewards = clicks()
    log, _ = log_of(tmp_path, index, queries, rewards=rewards)
    policy = decisions.Policy(index, 0.5)
    scored = decisions.score(log, policy, reward_model=lambda queries, ids: table[ids] * 0.8, draws=8)
    truth = (np.exp(index.log_prob(queries, np.arange(30), temperature=0.5)) @ table).mean()
    np.testing.assert_array_equal(scored.target[:, 0], index.log_prob(queries, _ids(log), temperature=0.5)[:, 0])
    for found in (decisions.ips(scored), decisions.snips(scored), decisions.doubly_robust(scored)):
        error = (found.high - found.low) / 3.92
        assert abs(found.value - truth) < 4 * error
        assert not found.warnings, found.warnings
    # A reward that is nearly predicted has nearly no variance left.
    assert decisions.doubly_robust(scored).high - decisions.doubly_robust(scored).low < (
        decisions.ips(scored).high - decisions.ips(scored).low
    )


def _ids(log):
    return np.concatenate([batch.ids for batch in log.batches()])


def test_batches_change_nothing(tmp_path):
    index, queries = made_index(), made_queries(300)
    log = decisions.Log(tmp_path)
    for part in range(6):
        chosen = queries[50 * part : 50 * part + 50]
        options = {"temperature": 1.0, "replace": False, "exclude": [part]}
        names = log.append(chosen, index.sample(chosen, 3, seed=part, **options), **options)
        log.add_rewards(names, np.full((50, 3), part))
    one, other = (decisions.score(log, decisions.Policy(index, 0.7), rows=rows) for rows in (13, 10_000))
    for name in ("rewards", "logged", "target"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert decisions.ips(one) == decisions.ips(other)


def test_the_same_policy_has_weights_of_one(tmp_path):
    index, queries = made_index(), made_queries(500)
    _, rewards = clicks()
    log, draws = log_of(tmp_path, index, queries, 4, rewards=rewards, replace=False)
    scored = decisions.score(log, decisions.Policy(index, 1.0))
    np.testing.assert_array_equal(scored.target, scored.logged)
    found = decisions.ips(scored)
    assert found.value == pytest.approx(rewards(queries, draws.ids).sum(axis=1).mean(), rel=1e-12)
    assert found.diagnosis.effective_sample_size == 500
    assert not found.warnings


def test_another_model_under_the_same_ids(tmp_path):
    index, queries = made_index(), made_queries(50)
    log, draws = log_of(tmp_path, index, queries)
    other = softindex.build(np.random.default_rng(9).standard_normal((20, 4)).astype(np.float32))
    policy = decisions.Policy(other, 0.3, encode=lambda queries: queries[:, :4])
    scored = decisions.score(log, policy)
    gone = draws.ids[:, 0] >= 20
    assert np.isneginf(scored.target[gone]).all()
    law = other.log_prob(queries[~gone, :4], draws.ids[~gone], temperature=0.3)
    np.testing.assert_array_equal(scored.target[~gone], law)
    assert decisions.ips(scored).diagnosis.never_shown == gone.mean()


def test_bootstrap_intervals_cover_and_agree_between_blocks_and_rows():
    """The width is that of the normal interval; with 2,000 repeats it is within a tenth but for about 1 in 1,000."""
    rng = np.random.default_rng(0)
    for n in (2000, 60_000):
        rewards = rng.exponential(size=(n, 1))
        found = decisions.ips(decisions.Scored(rewards, np.zeros((n, 1)), np.zeros((n, 1))), repeats=2000)
        assert found.high - found.low == pytest.approx(3.92 * rewards.std() / np.sqrt(n), rel=0.1)
        assert found.low < rewards.mean() < found.high


def test_empirical_bernstein_is_its_formula_and_wider():
    n, delta = 500, 0.05
    w = np.exp(TARGET[:, 0] - LOGGED[:, 0])
    terms = np.minimum(w, 5.0) * REWARDS[:, 0]
    found = decisions.clipped(ITEMS, 5.0, interval="bernstein", reach=5.0)
    n = len(terms)
    log = np.log(4 / delta)
    half = np.sqrt(2 * terms.var(ddof=1) * log / n) + 7 * 5.0 * log / (3 * (n - 1))
    assert found.high - found.value == pytest.approx(half, rel=1e-12)
    plain = decisions.clipped(ITEMS, 5.0)
    assert found.low < plain.low < plain.high < found.high
    with pytest.raises(softindex.InputError, match="above reach"):
        decisions.ips(ITEMS, interval="bernstein", reach=1e-3)
    with pytest.raises(softindex.InputError, match="snips is a ratio"):
        decisions.snips(ITEMS, interval="bernstein")


def test_proven_bounds_are_carried_into_the_estimate(tmp_path):
    index, queries = made_index(300), made_queries(200)
    _, rewards = clicks(n=300)
    log, draws = log_of(tmp_path, index, queries, rewards=rewards, method="certified", temperature=0.5)
    scored = decisions.score(log, decisions.Policy(index, 0.6))
    found = decisions.ips(scored)
    truth = index.log_prob(queries, draws.ids, temperature=0.5, method="exact")
    exact = decisions.ips(decisions.Scored(scored.rewards, truth, scored.target))
    low, high = found.bounds
    assert low <= found.value <= high
    assert low <= exact.value <= high


def test_a_stated_error_is_carried_into_the_estimate(tmp_path):
    index, queries = made_index(300), made_queries(200)
    _, rewards = clicks(n=300)
    log, _ = log_of(tmp_path, index, queries, rewards=rewards)
    found = decisions.ips(decisions.score(log, decisions.Policy(index, 0.5, probes=2)))
    error = index.sample(queries, temperature=0.5, probes=2).error.mean()
    assert 0 < found.law_error == pytest.approx(error * max(batch.rewards.max() for batch in log.batches()), rel=1e-9)
    assert decisions.ips(decisions.score(log, decisions.Policy(index, 0.5, method="exact"))).law_error == 0


class TestWarnings:
    """Sentences that a person understands, whenever they are due."""

    def test_few_decisions_that_count(self):
        target = np.full((1000, 1), -12.0)
        target[:3] = 0.0
        found = decisions.ips(decisions.Scored(np.ones((1000, 1)), np.full((1000, 1), -4.0), target))
        assert any("effective sample size is 3 of" in warning for warning in found.warnings)
        assert any("one decision has 33% of the total weight" in warning for warning in found.warnings)

    @pytest.mark.parametrize("options", [{"method": "top-k", "k": 5}, {"top_p": 0.5}])
    def test_logs_that_never_show_some_items(self, options, tmp_path):
        index, queries = made_index(), made_queries(60)
        _, rewards = clicks()
        log, _ = log_of(tmp_path, index, queries, rewards=rewards, **options)
        found = decisions.ips(decisions.score(log, decisions.Policy(index, 1.0)))
        assert any("100% of the decisions were drawn by top-k or top_p" in warning for warning in found.warnings)
        assert any("weights average" in warning for warning in found.warnings)

    def test_support_that_is_missing_without_a_word_in_the_log(self):
        """Half of the new policy's probability is on items that the log never showed."""
        found = decisions.snips(
            decisions.Scored(np.ones((5000, 1)), np.log(np.ones((5000, 1))), np.full((5000, 1), -0.69))
        )
        assert any("weights average 0.502 instead of 1" in warning for warning in found.warnings)

    def test_clipping_that_takes_most_of_the_weight_away(self):
        logged = np.log(np.where(np.arange(1000) % 10 == 0, 0.1, 0.9))[:, None]
        target = np.log(np.where(np.arange(1000) % 10 == 0, 0.9, 0.1))[:, None]
        scored = decisions.Scored(np.ones((1000, 1)), logged, target)
        assert not decisions.clipped(scored, 20.0).warnings
        assert any("clipped weights average 0.3" in warning for warning in decisions.clipped(scored, 2.0).warnings)

    def test_a_policy_that_would_do_nothing_of_the_kind(self):
        nothing = np.full((50, 1), -np.inf)
        found = decisions.ips(decisions.Scored(np.ones((50, 1)), np.zeros((50, 1)), nothing))
        assert any("none of the logged decisions" in warning for warning in found.warnings)
        assert found.value == 0
        assert "warning: " in str(found)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: decisions.ips(ITEMS, form="best"), "form is 'best'"),
        (lambda: decisions.ips(SLATES, form="independent"), "position_marginals"),
        (lambda: decisions.ips(ITEMS, confidence=2.0), "confidence is 2.0"),
        (lambda: decisions.ips(ITEMS, interval="wide"), "interval is 'wide'"),
        (lambda: decisions.ips(ITEMS, colour=1), "no option 'colour'"),
        (lambda: decisions.clipped(ITEMS, 0.0), "limit is 0.0"),
        (lambda: decisions.Scored(REWARDS, LOGGED[:5], TARGET), "logged has shape"),
        (lambda: decisions.Scored(REWARDS, LOGGED * np.nan, TARGET), "not finite"),
        (lambda: decisions.Scored(np.empty((0, 1)), np.empty((0, 1)), np.empty((0, 1))), "at least one"),
        (lambda: decisions.Policy(None, 1.0, seed=3), "'seed' is not an option"),
    ],
)
def test_what_cannot_be_estimated_is_refused(ask, message):
    with pytest.raises(softindex.InputError, match=message):
        ask()


def test_logs_that_cannot_be_scored_are_refused(tmp_path):
    index, queries = made_index(), made_queries(5)
    log = decisions.Log(tmp_path)
    with pytest.raises(softindex.InputError, match="holds no decisions"):
        decisions.score(log, decisions.Policy(index, 1.0))
    for n in (1, 2):
        log.append(queries, index.sample(queries, n, temperature=1.0), temperature=1.0)
    with pytest.raises(softindex.InputError, match="different numbers of items"):
        decisions.score(log, decisions.Policy(index, 1.0))


def test_decisions_without_a_reward_may_be_left_out(tmp_path):
    index, queries = made_index(), made_queries(10)
    log = decisions.Log(tmp_path)
    names = log.append(queries, index.sample(queries, temperature=1.0), temperature=1.0)
    log.add_rewards(names[:4], np.ones(4))
    policy = decisions.Policy(index, 1.0)
    assert decisions.ips(decisions.score(log, policy)).value == pytest.approx(0.4)
    assert decisions.ips(decisions.score(log, policy, unrewarded=False)).value == pytest.approx(1.0)


class TestMarginals:
    """How probable an item is at a position, whatever comes before it."""

    @pytest.mark.parametrize("options", [{}, {"method": "exact", "exclude": [2]}, {"method": "top-k", "k": 4}])
    def test_they_are_those_of_all_slates(self, options):
        """2,000 draws; within five standard errors of the sum over all ordered triples: false alarm about 2e-5."""
        index, (query,) = made_index(8), made_queries(1)
        slates = np.array(list(itertools.permutations(range(8), 3)))
        copies = np.tile(query, (len(slates), 1))
        chances = np.exp(index.log_prob(copies, slates, temperature=1.0, replace=False, **options).sum(axis=1))
        found = decisions.position_marginals(index, query, np.arange(8), 3, temperature=1.0, draws=2000, **options)
        for position in range(3):
            truth = np.bincount(slates[:, position], chances, 8)
            error = found.standard_error[position]
            assert (np.abs(found.probability[position] - truth) <= 5 * error + 1e-6).all()
        assert (found.standard_error[0] == 0).all()
        np.testing.assert_allclose(found.probability.sum(axis=1), 1, atol=1e-6)

    def test_slots_are_the_diagonal(self):
        index, queries = made_index(8), made_queries(3)
        slates = index.sample(queries, 3, temperature=1.0, replace=False, seed=1).ids
        found = decisions.slot_marginals(index, queries, slates, temperature=[1.0, 2.0, 3.0], draws=50)
        for row in range(3):
            table = decisions.position_marginals(index, queries[row], slates[row], 3, temperature=1.0 + row, draws=50)
            np.testing.assert_allclose(found.probability[row], np.diag(table.probability), rtol=1e-12)
            np.testing.assert_allclose(found.standard_error[row], np.diag(table.standard_error), atol=1e-15)


class TestWhichDecisions:
    """Those that are chosen, each once, and the rewards that belong to them."""

    def made(self, folder):
        index, queries = made_index(), made_queries(40)
        log = decisions.Log(folder)
        names = []
        for part in (slice(0, 20), slice(20, 40)):
            draws = index.sample(queries[part], temperature=1.0, seed=3)
            names += log.append(queries[part], draws, temperature=1.0, request_id=f"call {part.start}")
        log.add_rewards(names, np.arange(40.0))
        return index, queries, log

    def test_where_chooses(self, tmp_path):
        index, _, log = self.made(tmp_path)
        policy = decisions.Policy(index, 0.5)
        halves = [
            decisions.score(log, policy, where=lambda batch, half=half: batch.rows % 2 == half) for half in (0, 1)
        ]
        every = decisions.score(log, policy)
        for half, found in enumerate(halves):
            np.testing.assert_array_equal(found.rewards, every.rewards[half::2])
            np.testing.assert_array_equal(found.target, every.target[half::2])
            assert found.unmatched == 0
        with pytest.raises(softindex.InputError, match="chooses no decision"):
            decisions.score(log, policy, where=lambda batch: np.zeros(len(batch), bool))
        with pytest.raises(softindex.InputError, match="booleans"):
            decisions.score(log, policy, where=lambda batch: np.arange(3))

    def test_a_decision_counts_once(self, tmp_path):
        index, queries, log = self.made(tmp_path)
        once = decisions.score(log, decisions.Policy(index, 0.5))
        log.append(queries[:20], index.sample(queries[:20], temperature=1.0), temperature=1.0, request_id="call 0")
        again = decisions.score(log, decisions.Policy(index, 0.5))
        assert (once.repeated, again.repeated, len(again)) == (0, 20, 40)
        np.testing.assert_array_equal(np.sort(again.rewards.ravel()), np.arange(40.0))
        assert any("came before" in warning for warning in decisions.ips(again).warnings)

    def test_rewards_of_no_decision_are_counted(self, tmp_path):
        index, _, log = self.made(tmp_path)
        log.add_rewards(["elsewhere:0", "elsewhere:1"], [1.0, 1.0])
        found = decisions.score(log, decisions.Policy(index, 0.5))
        assert found.unmatched == 2
        assert any("2 rewards belong to no decision" in warning for warning in decisions.ips(found).warnings)

    def test_decisions_without_a_reward_may_be_left_out(self, tmp_path):
        index, queries = made_index(), made_queries(5)
        log, _ = log_of(tmp_path, index, queries)
        with pytest.raises(softindex.InputError, match="no decision has a reward"):
            decisions.score(log, decisions.Policy(index, 0.5), unrewarded=False)


def test_the_error_of_a_slate_grows_with_its_length():
    given = {"rewards": np.ones((50, 4)), "logged": np.full((50, 4), -1.0), "target": np.full((50, 4), -1.0)}
    for stated, error in ((0.01, 0.04 * 4), (0.5, 4.0)):
        assert decisions.ips(decisions.Scored(**given, stated_error=stated)).law_error == pytest.approx(error)


def test_few_decisions_of_the_policy_itself_are_only_few():
    one = np.full((50, 1), -1.0)
    (warning,) = decisions.ips(decisions.Scored(np.ones((50, 1)), one, one)).warnings
    assert warning.startswith("there are only 50 decisions")
