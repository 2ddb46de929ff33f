"""Train a language model with the full softmax and with sampled softmaxes, and compare perplexities.

    python -m experiments.language_model --data wikitext-2 --epochs 2 --out runs/language-model

The data directory contains train.txt, valid.txt and test.txt, or the same with .gz.  Every line ends with <eos>; the
vocabulary is that of train.txt, and other words are <unk>.  Without --data a small synthetic text is used.  Repeat the
command to continue an interrupted run.  Results of several commands add up in one directory.
"""

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.harness import costs, diagnosing
from experiments.harness.command import Task, add_settings, parser_of, perform, rated, replaced
from experiments.harness.methods import IGNORED, IndexSize, Objective, due
from experiments.harness.runs import Trainer

PUBLISHED = {
    "width": 200, "layers": 2, "dropout": 0.5, "batch": 20, "length": 35, "draws": 20, "rate": 20.0, "refresh": 20,
}  # fmt: skip
SMALL = PUBLISHED | {"width": 32, "layers": 1, "batch": 16, "dropout": 0.1, "rate": 5.0}
REPLACEABLE = {"refresh": int, "draws": int, "clip": float, "rate": float}
"""Settings that the command line may replace."""
CLIP = 0.25
"""Largest norm of the gradient."""


def read(folder):
    """Token ids (t,) of the three parts, and the size of the vocabulary."""
    words = {part: _words(folder, part) for part in ("train", "valid", "test")}
    known = {word: number for number, word in enumerate(dict.fromkeys([*words["train"], "<unk>"]))}
    unknown = known["<unk>"]
    return [np.array([known.get(word, unknown) for word in part]) for part in words.values()], len(known)


def _words(folder, part):
    plain = folder / f"{part}.txt"
    packed = plain.with_name(f"{part}.txt.gz")
    with gzip.open(packed, "rt", encoding="utf-8") if packed.exists() else plain.open(encoding="utf-8") as lines:
        return [word for line in lines for word in (*line.split(), "<eos>")]


def synthetic(words=300, lengths=(24_000, 3_000, 3_000), followers=6):
    """Text of a Markov chain: each word has a few followers with unequal probabilities."""
    rng = np.random.default_rng(0)
    after = rng.zipf(1.3, (words, followers)) % words
    chances = 1.0 / np.arange(1, followers + 1)
    chosen = rng.choice(followers, sum(lengths), p=chances / chances.sum())
    strays = rng.integers(words, size=sum(lengths))
    chosen = np.where(rng.random(sum(lengths)) < 0.1, followers, chosen)
    tokens = np.zeros(sum(lengths), np.int64)
    for place in range(1, len(tokens)):
        tokens[place] = strays[place] if chosen[place] == followers else after[tokens[place - 1], chosen[place]]
    return np.split(tokens, np.cumsum(lengths)[:-1]), words


def columns(tokens, batch):
    """Inputs and targets (t, batch): the text in columns of equal length; the last is padded with IGNORED."""
    inputs, targets = tokens[:-1], tokens[1:]
    rows = -(-len(inputs) // batch)
    room = rows * batch - len(inputs)
    inputs = np.concatenate([inputs, np.zeros(room, np.int64)])
    targets = np.concatenate([targets, np.full(room, IGNORED)])
    return tuple(torch.from_numpy(np.ascontiguousarray(part.reshape(batch, rows).T)) for part in (inputs, targets))


class LanguageModel(nn.Module):
    """An LSTM whose output layer is its input embedding."""

    def __init__(self, words, width, layers, dropout):
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, tokens, state):
        """Queries (t * b, d) for tokens (t, b), and the new state."""
        hidden, state = self.lstm(self.dropout(self.words(tokens)), state)
        return self.dropout(hidden).flatten(0, 1), state


class TextTrainer(Trainer):
    """What trainers of language models share: the text in columns, read from top to bottom, and perplexity."""

    measured_rows = None
    """Rows of the columns that a perplexity is measured on; None for all."""

    def __init__(self, parts, settings):
        self.batch, self.length = settings["batch"], settings["length"]
        self.parts = [columns(part, self.batch) for part in parts]
        self.steps = -(-len(self.parts[0][0]) // self.length)
        self.state = None

    def logits(self, queries):
        """Logits (m, words) of queries (m, d) under the full softmax."""
        raise NotImplementedError

    def advance(self, place):
        """Queries and targets of the next rows, starting from the last state."""
        self.model.train()
        if place == 0:
            self.state = None
        inputs, targets = (part[place * self.length : (place + 1) * self.length] for part in self.parts[0])
        queries, state = self.model(inputs, self.state)
        self.state = tuple(part.detach() for part in state)
        return queries, targets.flatten()

    def validate(self):
        """Perplexity per token under the full softmax."""
        return self._measure(*self.parts[1])

    def test(self):
        """Perplexity per token under the full softmax."""
        return self._measure(*self.parts[2])

    @torch.no_grad()
    def _measure(self, inputs, targets):
        self.model.eval()
        state, total = None, 0.0
        inputs, targets = inputs[: self.measured_rows], targets[: self.measured_rows]
        for begin in range(0, len(inputs), self.length):
            queries, state = self.model(inputs[begin : begin + self.length], state)
            wanted = targets[begin : begin + self.length].flatten()
            total += functional.cross_entropy(
                self.logits(queries), wanted, ignore_index=IGNORED, reduction="sum"
            ).item()
        return {"perplexity": math.exp(total / (targets != IGNORED).sum().item())}

    def carried(self):
        """State of the LSTM after the last step."""
        return {} if self.state is None else {"hidden": self.state[0], "cell": self.state[1]}

    def carry(self, tensors):
        """Restore the state of the LSTM."""
        self.state = (tensors["hidden"], tensors["cell"]) if tensors else None


class LanguageTrainer(TextTrainer):
    """Trains the language model with one of the compared methods."""

    def __init__(self, parts, words, settings, method, codewords):
        super().__init__(parts, settings)
        self.codewords, self.clip = codewords, settings.get("clip", CLIP)
        self.model = LanguageModel(words, settings["width"], settings["layers"], settings["dropout"])
        # As published.  Adam moves rare words as far as frequent ones, and codebooks then fit noise.
        name, multiple = rated(method)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=multiple * settings["rate"])
        counts = np.bincount(parts[0][1:], minlength=words)
        self.refresh = settings["refresh"]
        self.objective = Objective(name, counts, settings["draws"], IndexSize.refreshed(self.refresh, codewords))

    def logits(self, queries):
        """Logits (m, words) of queries (m, d) under the full softmax."""
        return functional.linear(queries, self.model.words.weight, self.model.bias)

    def step(self, epoch, place):
        """Train on the next rows."""
        if due(epoch * self.steps + place, self.refresh):
            self.refresh_objective()
        return self.descend(self.objective(*self.loss_inputs(epoch, place)), self.clip)

    def refresh_objective(self):
        """Refresh the sampler, if there is one."""
        words, bias = self.layer()
        self.objective.refresh(words, bias=bias)

    def layer(self):
        """Words (n, d) and their bias (n,)."""
        return self.model.words.weight, self.model.bias

    def loss_inputs(self, epoch, place):
        """Queries, targets, words and their bias of the next rows."""
        return *self.advance(place), *self.layer()

    @torch.no_grad()
    def queries(self, part, count):
        """About `count` queries (m, d) of a part of the text in evaluation mode, and their targets."""
        self.model.eval()
        rows = -(-count // self.batch)
        inputs, targets = (one[:rows] for one in self.parts[part])
        return self.model(inputs, None)[0], targets.flatten()


def main():
    """Compare the methods."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="directory of train.txt, valid.txt and test.txt")
    diagnosing.add_option(parser)
    costs.add_option(parser)
    add_settings(parser, REPLACEABLE)
    options = parser.parse_args()
    parts, words = synthetic() if options.data is None else read(options.data)
    settings = replaced(SMALL if options.data is None else PUBLISHED, options, REPLACEABLE)
    codewords = 8 if options.data is None else 64
    task = Task(
        name="language-model",
        title=f"Language modelling, {'a synthetic text' if options.data is None else options.data.name}",
        settings={"words": words, "tokens": len(parts[0]), **settings},
        make=lambda method, seed: LanguageTrainer(parts, words, settings, method, codewords),
        metrics={"perplexity": ("perplexity", ".1f")},
        chosen_by="perplexity",
        lower_is_better=True,
    )
    perform(task, options, options.epochs or 2)


if __name__ == "__main__":
    main()
