"""What cannot be right is refused with a sentence: it would otherwise become a wrong estimate."""

from pathlib import Path

import numpy as np
import pytest
from made_logs import log_of, made_index, made_queries

from softindex import decisions
from softindex.errors import InputError

B = 20


@pytest.fixture
def logged(tmp_path):
    index, queries = made_index(), made_queries(B)
    log, draws = log_of(tmp_path / "log", index, queries, rewards=lambda _, ids: np.ones(ids.shape))
    return index, queries, log, draws


class Given:
    """A policy that says whatever it is told to say."""

    def __init__(self, log_prob):
        self._log_prob = log_prob

    def log_prob(self, _):
        return self._log_prob


def test_what_was_not_drawn_is_not_logged(logged):
    _, queries, log, draws = logged
    before = len(log)
    with pytest.raises(InputError, match="pass what sample returned"):
        log.append(queries, (draws.ids, draws.log_prob), temperature=1.0)
    with pytest.raises(InputError, match="queries"):
        log.append(queries * np.nan, draws, temperature=1.0)
    assert len(log) == before


@pytest.mark.parametrize("rewards", [["a"], [np.nan], [1.0, 2.0]])
def test_rewards_are_numbers_one_for_each(logged, rewards):
    with pytest.raises(InputError):
        logged[2].add_rewards(["x:0"], rewards)


@pytest.mark.parametrize("position", [-1, 0.5, "first"])
def test_positions_count_from_0(logged, position):
    with pytest.raises(InputError, match="position"):
        logged[2].add_rewards(["x:0"], [1.0], position=position)


def test_a_reward_of_an_item_that_was_not_shown_is_named(logged):
    index, _, log, _ = logged
    name = next(iter(log.batches())).decision_ids[3].as_py()
    log.add_rewards([name], [1.0], position=1)
    with pytest.raises(InputError, match=name):
        decisions.score(log, decisions.Policy(index, 1.0))


def test_rewards_that_belong_to_no_decision_are_no_zeros(logged, tmp_path):
    index, queries, _, _ = logged
    log, _ = log_of(tmp_path / "other", index, queries)
    log.add_rewards(["of another log"], [1.0])
    with pytest.raises(InputError, match="no reward belongs"):
        decisions.score(log, decisions.Policy(index, 1.0))


@pytest.mark.parametrize("kind", ["decisions", "rewards"])
def test_a_damaged_file_is_named(logged, kind):
    index, _, log, _ = logged
    log.flush()
    (path,) = Path(log._folder).glob(f"{kind}-*.parquet")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=path.name):
        decisions.score(log, decisions.Policy(index, 1.0))
    with pytest.raises(InputError, match=path.name):
        decisions.replay(log, index)


@pytest.mark.parametrize(
    "policy",
    [3, Given(np.zeros(B)), Given(np.full((B, 1), np.nan)), Given(np.full((B, 1), 0.1)), Given(np.zeros((B, 2)))],
)
def test_a_policy_gives_log_probabilities(logged, policy):
    with pytest.raises(InputError, match="policy"):
        decisions.score(logged[2], policy)


def test_a_policy_has_a_temperature(logged):
    with pytest.raises(InputError, match="temperature"):
        decisions.Policy(logged[0], 0.0)


@pytest.mark.parametrize("model", [lambda _, ids: np.zeros(3), lambda _, ids: np.full(ids.shape, np.nan)])
def test_a_reward_model_predicts_a_number_for_each_item(logged, model):
    with pytest.raises(InputError, match="reward model"):
        decisions.score(logged[2], decisions.Policy(logged[0], 1.0), reward_model=model)


def test_a_seed_is_an_integer_from_0(logged):
    scored = decisions.score(logged[2], decisions.Policy(logged[0], 1.0))
    with pytest.raises(InputError, match="seed"):
        decisions.ips(scored, seed=-1)
