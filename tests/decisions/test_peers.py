"""Other tools read what is exported, and estimate the same values.

SOFTINDEX_PEERS names an interpreter with obp and vowpalwabbit, which need other versions of NumPy than this library;
without it, this one is tried.  Both are optional.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_logs import clicks, log_of, made_index, made_queries

import softindex
from softindex import decisions

PEERS = os.environ.get("SOFTINDEX_PEERS", sys.executable)
IDS = np.arange(30)


def need(module):
    if subprocess.run([PEERS, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{module} is not installed")


@pytest.fixture
def made(tmp_path):
    """Logs of single items and of slates, and everything that the other tool wants to know."""
    index, queries = made_index(), made_queries(700)
    table, rewards = clicks()
    single, _ = log_of(tmp_path / "single", index, queries, rewards=rewards)
    slates, draws = log_of(tmp_path / "slates", index, queries[:60], 3, rewards=rewards, replace=False)
    return index, table, single, slates, draws


def test_exports_have_the_shapes_that_other_tools_want(made):
    index, _, single, slates, draws = made
    feedback = decisions.to_obp(single, IDS)
    assert (feedback["n_rounds"], feedback["n_actions"]) == (700, 30)
    assert feedback["context"].shape == (700, 6)
    law = decisions.action_distribution(single, decisions.Policy(index, 1.0), IDS)
    np.testing.assert_allclose(law.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(law[np.arange(700), feedback["action"], 0], feedback["pscore"])
    lists = decisions.to_obp_slates(slates, IDS[::-1])
    np.testing.assert_array_equal(29 - lists["action"].reshape(60, 3), draws.ids)
    np.testing.assert_allclose(lists["pscore_cascade"].reshape(60, 3)[:, -1], lists["pscore"].reshape(60, 3)[:, -1])
    with pytest.raises(softindex.InputError, match="have 3 items"):
        decisions.to_obp(slates, IDS)
    with pytest.raises(softindex.InputError, match="not among ids"):
        decisions.to_obp(single, IDS[:5])


def test_the_open_bandit_pipeline_estimates_the_same(made, tmp_path):
    need("obp.ope")
    index, _, single, slates, draws = made
    policy = decisions.Policy(index, 0.5)
    law = decisions.action_distribution(single, policy, IDS)
    model = np.random.default_rng(0).random(30)
    feedback = decisions.to_obp(single, IDS)
    lists = decisions.to_obp_slates(slates, IDS)
    scored = decisions.score(slates, policy)
    queries = np.concatenate([batch.queries for batch in slates.batches()])
    positions = [
        decisions.slot_marginals(index, queries, draws.ids, temperature=t, draws=200).probability for t in (1.0, 0.5)
    ]
    given = {name: feedback[name] for name in ("reward", "action", "pscore")}
    given |= {"action_dist": law, "estimated_rewards": np.broadcast_to(model[None, :, None], law.shape)}
    given |= {"slate_id": lists["slate_id"], "position": lists["position"], "slate_reward": lists["reward"]}
    given |= {
        "slate_pscore": lists["pscore"],
        "slate_pscore_cascade": lists["pscore_cascade"],
        "slate_pscore_item_position": positions[0].ravel(),
        "evaluation_pscore": np.repeat(np.exp(scored.target.sum(axis=1)), 3),
        "evaluation_pscore_cascade": np.exp(np.cumsum(scored.target, axis=1)).ravel(),
        "evaluation_pscore_item_position": positions[1].ravel(),
    }
    np.savez(tmp_path / "given.npz", **given)
    script = Path(__file__).parent / "peer_estimates.py"
    command = [PEERS, str(script), str(tmp_path / "given.npz"), str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    theirs = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    one = decisions.score(single, policy)
    actions, expected = feedback["action"], (law[:, :, 0] @ model)[:, None]
    modelled = decisions.Scored(
        one.rewards, one.logged, one.target, predicted=model[actions][:, None], expected=expected
    )
    marginal = decisions.Scored(
        scored.rewards, scored.logged, scored.target,
        logged_positions=np.log(positions[0]), target_positions=np.log(positions[1]),
    )  # fmt: skip
    ours = {
        "ips": decisions.ips(one),
        "clipped": decisions.clipped(one, 2.0),
        "snips": decisions.snips(one),
        "doubly robust": decisions.doubly_robust(modelled),
        **{form: decisions.ips(marginal, form=form) for form in ("standard", "cascade", "independent")},
    }
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        assert ours[name].value == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_vowpal_wabbit_learns_from_the_export(made, tmp_path):
    _, table, single, _, _ = made
    assert decisions.to_vw(single, tmp_path / "log.vw", IDS) == 700
    first = (tmp_path / "log.vw").read_text(encoding="ascii").splitlines()[0]
    feedback = decisions.to_obp(single, IDS)
    action, cost, chance = first.split(" | ")[0].split(":")
    assert int(action) == feedback["action"][0] + 1
    assert float(cost) == -feedback["reward"][0]
    assert float(chance) == feedback["pscore"][0]
    need("vowpalwabbit")
    script = (
        "import sys, vowpalwabbit\n"
        "workspace = vowpalwabbit.Workspace('--cb 30 --quiet')\n"
        "lines = open(sys.argv[1]).read().splitlines()\n"
        "for _ in range(20):\n    [workspace.learn(line) for line in lines]\n"
        "print(' '.join(str(workspace.predict('| ' + line.split(' | ')[1])) for line in lines))\n"
    )
    done = subprocess.run(
        [PEERS, "-c", script, str(tmp_path / "log.vw")], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    chosen = np.array(done.stdout.split(), int) - 1
    # A policy that learned anything earns more than the mean of the table.
    assert table[chosen].mean() > table.mean() + table.std() / 2
