"""A simulated shop: are estimates of other policies right, does off-policy learning help, and what does exploring cost?

    python -m experiments.simulated_shop --data Beauty.txt.gz --page page.md --figure shop.svg

A line of the file is a user number, then the numbers of the user's items in order of time.  A model of what users took,
except for their last item, ranks all items; their clicks follow another model, which knows the last item too.  So the
value of every policy is known, and estimates from logged decisions can be compared with it.  Without --data synthetic
users are used.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import softindex
from benchmarks.tables import Table, place
from experiments.harness.sequences import load_sequences
from experiments.harness.shop import Shop
from softindex import decisions
from softindex.evaluate.charts import Axis, Series, figure, plot
from softindex.train import OffPolicyLoss, SampledSoftmaxLoss, UniformSampler

LOGGED, DEPLOYED = 0.15, 0.1
TEMPERATURES = (0.05, 0.1, 0.15, 0.25, 0.4)
ESTIMATORS = ("ips", "snips", "clipped", "doubly robust")


class Study:
    """A shop, its logging policy, and the policies that it might use instead."""

    def __init__(self, shop, small):
        self.shop, self.small = shop, small
        self.indexes = {rank: shop.index(rank) for rank in shop.vectors}
        self.queries = {rank: shop.queries(rank) for rank in shop.vectors}
        self.policies = {
            "a lower temperature, 0.12": (32, {"temperature": 0.12}),
            "a higher temperature, 0.2": (32, {"temperature": 0.2}),
            "another model, of rank 16": (16, {"temperature": 0.2}),
            "the 500 best only": (32, {"temperature": LOGGED, "method": "top-k", "k": 30 if small else 500}),
            "nearly greedy, 0.01": (32, {"temperature": 0.01}),
        }
        # For all users and items.  Logged decisions are looked up here, and are to the last bit what log_prob returns.
        self.laws = {name: self.law(*policy) for name, policy in self.policies.items()}
        self.truth = {name: self.shop.earned(law) for name, law in self.laws.items()}
        seen = np.exp((self.queries[32] @ self.shop.vectors[32].T - 1) / 0.15)
        self.expected = {name: (np.exp(law) * seen).sum(axis=1) for name, law in self.laws.items()}

    def law(self, rank, options):
        """(users, items) log-probabilities of a policy."""
        return self.indexes[rank].log_prob(self.queries[rank], np.arange(self.shop.items), **options)

    def value(self, rank, options):
        """The true value of a policy."""
        return self.shop.earned(self.law(rank, options))

    def log(self, count, seed, **options):
        """Users who came, what they were shown, with log-probabilities, and what they clicked on."""
        rng = np.random.default_rng(seed)
        users = rng.integers(self.shop.users, size=count)
        asked = {"temperature": LOGGED, **options}
        draws = self.indexes[32].sample(self.queries[32][users], seed=seed, **asked)
        rewards = (rng.random((count, 1)) < self.shop.clicks(users[:, None], draws.ids)).astype(np.float64)
        return users, draws, rewards

    def score(self, logged, name, model, restricted=0.0):
        """Logged decisions, scored under one of the policies."""
        users, draws, rewards = logged
        return decisions.Scored(
            rewards,
            draws.log_prob,
            self.laws[name][users[:, None], draws.ids],
            predicted=self.predict(users, draws.ids, model),
            expected=model[0] + model[1] * self.expected[name][users][:, None],
            restricted=restricted,
        )

    def predict(self, users, ids, model):
        """Expected clicks, a line through a function of the similarity that the shop's own model sees."""
        scores = np.einsum("bd,bmd->bm", self.queries[32][users], self.shop.vectors[32][ids])
        return model[0] + model[1] * np.exp((scores - 1) / 0.15)

    def fit(self, logged):
        """The two coefficients of the line of `predict`, by least squares."""
        users, draws, rewards = logged
        columns = self.predict(users, draws.ids, (0.0, 1.0)).ravel()
        return np.linalg.lstsq(np.stack([np.ones(len(columns)), columns], axis=1), rewards[:, 0], rcond=None)[0]


def estimate(scored, repeats):
    """One estimate by each estimator."""
    options = {"repeats": repeats}
    return (
        decisions.ips(scored, **options),
        decisions.snips(scored, **options),
        decisions.clipped(scored, 20.0, **options),
        decisions.doubly_robust(scored, **options),
    )


def repeat(study, count, repetitions, repeats):
    """By policy: values, whether the interval covers, warnings and effective sample sizes of every repetition."""
    model = study.fit(study.log(count, 10**6))
    found = {name: [] for name in [*study.policies, "support fails"]}
    for seed in range(repetitions):
        if seed % 20 == 0:
            print(f"repetition {seed}", file=sys.stderr, flush=True)
        logged = study.log(count, seed)
        for name in study.policies:
            found[name].append(estimate(study.score(logged, name, model), repeats))
        # A log of the 30 or 500 best says nothing about the other items that a higher temperature shows.
        best = study.policies["the 500 best only"][1]
        narrow = study.log(count, seed, **best)
        scored = study.score(narrow, "a higher temperature, 0.2", model, restricted=1.0)
        found["support fails"].append(estimate(scored, repeats))
    return found


def coverage_rows(study, found):
    """The table of estimates against the truth."""
    truth = {**study.truth, "support fails": study.truth["a higher temperature, 0.2"]}
    rows = []
    for name, runs in found.items():
        for place_, estimator in enumerate(ESTIMATORS):
            values = np.array([run[place_].value for run in runs])
            inside = np.mean([run[place_].low <= truth[name] <= run[place_].high for run in runs])
            warned = np.mean([bool(run[place_].warnings) for run in runs])
            size = np.median([run[place_].diagnosis.effective_sample_size for run in runs])
            error = np.sqrt(np.mean((values - truth[name]) ** 2))
            rows.append(
                [name, estimator, f"{truth[name]:.4f}", f"{values.mean():.4f}", f"{error:.4f}", f"{inside:.1%}",
                 f"{size:,.0f}", f"{warned:.0%}"]
            )  # fmt: skip
    return rows


class Learned(nn.Module):
    """A learned policy: a linear map of the queries and a bias for each item."""

    def __init__(self, items, rank):
        super().__init__()
        self.turn = nn.Parameter(torch.eye(rank))
        self.bias = nn.Parameter(torch.zeros(items))

    def queries(self, given):
        """Mapped queries, scaled to length one."""
        return nn.functional.normalize(given @ self.turn, dim=1)


def learn(study, logged, weighting, epochs, seed):
    """Train on a log, and return the true value of what was learned at the temperature that is deployed."""
    torch.manual_seed(seed)
    users, draws, rewards = logged
    vectors = torch.from_numpy(study.shop.vectors[32])
    given = torch.from_numpy(study.queries[32][users])
    shown, log_prob = torch.from_numpy(draws.ids[:, 0]), torch.from_numpy(draws.log_prob[:, 0])
    earned = torch.from_numpy(rewards[:, 0])
    policy = Learned(study.shop.items, 32)
    sampled = SampledSoftmaxLoss(
        UniformSampler(study.shop.items), draws=min(1000, study.shop.items), shared=True, reduction="none"
    )
    loss = OffPolicyLoss(sampled, weighting=weighting, limit=20.0 if weighting == "policy" else 2e4)
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(users)).split(512):
            optimiser.zero_grad()
            value = loss(
                policy.queries(given[rows]) / DEPLOYED, shown[rows], vectors, policy.bias,
                rewards=earned[rows] - (earned.mean() if weighting == "policy" else 0.0), log_prob=log_prob[rows],
            )  # fmt: skip
            # Importance weights of the likelihood are about as large as the catalogue: only their ratios matter.
            scale = 1.0 if weighting == "policy" else 1.0 / study.shop.items
            (scale * value + 1e-3 * policy.bias.square().mean()).backward()
            optimiser.step()
    with torch.no_grad():
        index = softindex.build(study.shop.vectors[32], log_bias=policy.bias.numpy().copy(), seed=0)
        queries = policy.queries(torch.from_numpy(study.queries[32])).numpy().astype(np.float32)
    return study.shop.earned(index.log_prob(queries, np.arange(study.shop.items), temperature=DEPLOYED))


def explore(study, count, epochs):
    """By temperature: value while logging, values learned from that log, and the width of an interval."""
    rows = []
    for temperature in TEMPERATURES:
        while_logging = study.value(32, {"temperature": temperature})
        logged = study.log(count, 7, temperature=temperature)
        learned = [learn(study, logged, weighting, epochs, 0) for weighting in ("policy", "logged")]
        scored = study.score(logged, "a lower temperature, 0.12", (0.0, 0.0))
        width = decisions.snips(scored)
        rows.append((temperature, while_logging, *learned, width.high - width.low))
    return np.array(rows)


def draw(study, found, explored, path):
    """The figure: estimates against the truth, and what exploring costs and brings."""
    series, everything = [], []
    for style, (name, runs) in enumerate(found.items()):
        values = np.array([run[1].value for run in runs])
        truth = {**study.truth, "support fails": study.truth["a higher temperature, 0.2"]}[name]
        series.append(Series(name, np.full(len(values), truth), values, style, small=True))
        everything += [*values, truth]
    room = Axis.around("", np.array(everything))
    x, y = Axis("true value", room.low, room.high), Axis("snips", room.low, room.high)
    equal = np.linspace(room.low, room.high, 60)
    line = Series("equal", equal, equal, 7, small=True)
    first = plot([line, *series], x, y, title="Estimates against the truth", text="one dot per repetition")
    t, now, policy, likelihood, _ = explored.T
    lines = [
        Series("earned while logging", t, now, 0, joined=True),
        Series("learned, policy gradient", t, policy, 1, joined=True),
        Series("learned, likelihood", t, likelihood, 2, joined=True),
    ]
    second = plot(
        lines, Axis.around("temperature of the log", t, log=True),
        Axis.around("clicks per decision", np.concatenate([now, policy, likelihood])),
        title="What exploring costs and brings", text="value while logging, and of what was learned from the log",
    )  # fmt: skip
    labels = [(name, style) for style, name in enumerate(found)]
    panels = [("estimates of 6 policies, colours below", first), ("● while logging  ■ ▲ learned from it", second)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        figure(panels, labels, title="A simulated shop", text="estimates and exploration"), encoding="utf-8"
    )


def main():
    """Run the study, print its tables, and write the page and the figure that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="file of sequences, plain or .gz")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--decisions", type=int, default=4000, help="in each log")
    parser.add_argument("--learning", type=int, default=30_000, help="decisions in a log that is learned from")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--page", type=Path, help="Markdown page with marks for the section simulated-shop")
    parser.add_argument("--figure", type=Path, default=Path("simulated-shop.svg"))
    options = parser.parse_args()
    taken, items, name = load_sequences(options.data)
    study = Study(Shop(taken, items, 300 if options.data is None else 2000), options.data is None)
    found = repeat(study, options.decisions, options.repetitions, 400)
    explored = explore(study, options.learning, options.epochs)
    draw(study, found, explored, options.figure)
    columns = ["policy", "estimator", "truth", "mean estimate", "RMSE", "covered", "effective sample size", "warned"]
    tables = [
        Table(
            f"{name}, {items:,} items: {options.repetitions} logs of {options.decisions:,} decisions each, logged at "
            f"t = {LOGGED}; 95 % bootstrap intervals",
            columns,
            coverage_rows(study, found),
        ),
        Table(
            f"Logs of {options.learning:,} decisions by temperature; what is learned is deployed at t = {DEPLOYED}, "
            f"where the model itself earns {study.value(32, {'temperature': DEPLOYED}):.4f}",
            ["temperature of the log", "earned while logging", "learned, policy gradient", "learned, likelihood",
             "width of an interval for t = 0.12"],
            [[f"{row[0]:g}", *(f"{value:.4f}" for value in row[1:])] for row in explored],
        ),
    ]  # fmt: skip
    body = "\n\n".join(table.markdown() for table in tables)
    print(body)
    if options.page is not None:
        place(options.page, "simulated-shop", body)


if __name__ == "__main__":
    main()
