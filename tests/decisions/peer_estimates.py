"""Estimates of the Open Bandit Pipeline, in an interpreter that has it: reads arrays, writes values."""

import json
import sys

import numpy as np
from obp import ope


def main(source, target):
    given = np.load(source)
    rounds = {name: given[name] for name in ("reward", "action", "pscore", "action_dist")}
    estimated = given["estimated_rewards"]
    found = {
        "ips": ope.InverseProbabilityWeighting().estimate_policy_value(**rounds),
        "clipped": ope.InverseProbabilityWeighting(lambda_=2.0).estimate_policy_value(**rounds),
        "snips": ope.SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**rounds),
        "doubly robust": ope.DoublyRobust().estimate_policy_value(**rounds, estimated_rewards_by_reg_model=estimated),
    }
    slates = {name: given[name] for name in ("slate_id", "position")} | {"reward": given["slate_reward"]}
    length = int(given["position"].max()) + 1
    for name, suffix, kind in (
        ("standard", "", ope.SlateStandardIPS),
        ("cascade", "_cascade", ope.SlateRewardInteractionIPS),
        ("independent", "_item_position", ope.SlateIndependentIPS),
    ):
        chances = {
            f"pscore{suffix}": given[f"slate_pscore{suffix}"],
            f"evaluation_policy_pscore{suffix}": given[f"evaluation_pscore{suffix}"],
        }
        found[name] = kind(len_list=length).estimate_policy_value(**slates, **chances)
    with open(target, "w", encoding="utf-8") as file:
        json.dump({name: float(value) for name, value in found.items()}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
