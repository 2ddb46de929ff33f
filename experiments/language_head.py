"""Train a language model whose output layer is wide and not tied, and measure AdaptiveSoftmax on its states.

    python -m experiments.language_head --data wikitext-2 --epochs 2 --out runs/language-head
    python -m experiments.language_head --data wikitext-2 --out runs/language-head --measure --page docs/benchmarks.md

The first command trains an LSTM with the sampled loss of `softindex.train`; repeat it to continue an interrupted run.
The second takes the best weights so far, collects the states of the model on the validation text, and answers each of
them with every guarantee.  With `--model bag` it is a text classifier: which word follows, from the mean of the ten
words before it in any order.  The data are those of `experiments.language_model`; without --data a small synthetic text
is used.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.tables import place
from experiments.harness.command import Task, compare, parser_of
from experiments.harness.heads import measure
from experiments.harness.methods import IGNORED
from experiments.harness.runs import Run
from experiments.language_model import TextTrainer, read, synthetic
from softindex.train import SampledSoftmaxLoss, UnigramSampler

LARGE = {"embedding": 256, "hidden": 512, "width": 1024, "dropout": 0.3, "batch": 40, "length": 35, "draws": 1024}
SMALL = {"embedding": 32, "hidden": 64, "width": 256, "dropout": 0.1, "batch": 16, "length": 35, "draws": 64}
RATE, CLIP = 2e-3, 0.5
MEASURED_ROWS = 500
"""Rows of the validation columns that a perplexity is measured on: the full softmax of all of them takes minutes."""
CALIBRATION = 200
"""States to calibrate with."""
METHODS = {"unigram": "unigram, one set of draws per batch"}
BAG = 10
"""Words that a bag holds."""


class Bag(nn.Module):
    """A dense layer over the mean of the last BAG vectors, or of as many as there are."""

    def __init__(self, width, hidden):
        super().__init__()
        self.dense = nn.Linear(width, hidden)

    def forward(self, vectors, state):
        """Hidden vectors (t, b, hidden) for vectors (t, b, width); there is no state."""
        sums = torch.cumsum(vectors, dim=0)
        before = torch.cat([torch.zeros_like(sums[:BAG]), sums[:-BAG]])[: len(sums)]
        counts = torch.arange(1, len(sums) + 1).clamp(max=BAG)[:, None, None]
        return functional.gelu(self.dense((sums - before) / counts)), (torch.zeros(1), torch.zeros(1))


class WideHead(nn.Module):
    """An LSTM, or a bag of words, under a dense layer whose outputs are as wide as the rows of the output layer."""

    def __init__(self, words, counts, settings):
        super().__init__()
        self.embedding = nn.Embedding(words, settings["embedding"], sparse=True)
        self.lstm = ENCODERS[settings["model"]](settings["embedding"], settings["hidden"])
        self.dense = nn.Linear(settings["hidden"], settings["width"])
        self.dropout = nn.Dropout(settings["dropout"])
        self.head = nn.Linear(settings["width"], words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.normal_(self.head.weight, std=0.1 / math.sqrt(settings["width"]))
        # The logits start as those of the word frequencies.
        shares = torch.as_tensor(counts + 1.0) / (counts.sum() + words)
        self.head.bias.data.copy_(shares.log())

    def forward(self, tokens, state):
        """Queries (t * b, width) for tokens (t, b), and the new state."""
        hidden, state = self.lstm(self.dropout(self.embedding(tokens)), state)
        return self.dropout(functional.gelu(self.dense(self.dropout(hidden)))).flatten(0, 1), state


ENCODERS = {"lstm": nn.LSTM, "bag": Bag}


class HeadTrainer(TextTrainer):
    """Trains with one set of draws per batch; rows of the output layer that were not drawn are not touched."""

    measured_rows = MEASURED_ROWS

    def __init__(self, parts, words, settings):
        super().__init__(parts, settings)
        counts = np.bincount(parts[0][1:], minlength=words)
        self.model = WideHead(words, counts, settings)
        sampler = UnigramSampler(words)
        sampler.refresh(self.model.head.weight.detach(), frequencies=torch.as_tensor(counts, dtype=torch.float32))
        self.objective = SampledSoftmaxLoss(
            sampler, draws=settings["draws"], shared=True, sparse=True, ignore_index=IGNORED
        )
        sparse = [self.model.embedding.weight, self.model.head.weight]
        self.dense = [*self.model.lstm.parameters(), *self.model.dense.parameters()]
        self.optimiser = Both(torch.optim.SparseAdam(sparse, lr=RATE), torch.optim.Adam(self.dense, lr=RATE))

    def logits(self, queries):
        """Logits (m, words) of queries (m, width) under the full softmax."""
        return self.model.head(queries)

    def step(self, epoch, place):
        """Train on the next rows."""
        queries, targets = self.advance(place)
        loss = self.objective(queries, targets, self.model.head.weight, bias=self.model.head.bias.detach())
        return self.descend(loss, CLIP, self.dense)

    @torch.no_grad()
    def states(self, part, count):
        """`count` queries (m, width) of a part of the text, in evaluation mode, from random places."""
        self.model.eval()
        rows = -(-8 * count // self.parts[part][0].shape[1])
        queries, _ = self.model(self.parts[part][0][:rows], None)
        chosen = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:count]
        return queries[chosen].numpy()


class Both:
    """Two optimisers as one: rows with sparse gradients need their own."""

    def __init__(self, *parts):
        self.parts = parts

    def zero_grad(self):
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad()

    def step(self):
        """Take a step with each."""
        for part in self.parts:
            part.step()

    def state_dict(self):
        """State of both."""
        return {str(number): part.state_dict() for number, part in enumerate(self.parts)}

    def load_state_dict(self, state):
        """Restore both."""
        for number, part in enumerate(self.parts):
            part.load_state_dict(state[str(number)])


def task_of(data, model):
    """The task on a text, or on a synthetic one."""
    parts, words = synthetic() if data is None else read(data)
    settings = {**(SMALL if data is None else LARGE), "model": model}
    return Task(
        name="language-head" if model == "lstm" else "text-classifier",
        title=f"A {model} under a wide head, {'a synthetic text' if data is None else data.name}",
        settings={"words": words, "tokens": len(parts[0]), **settings},
        make=lambda method, seed: HeadTrainer(parts, words, settings),
        metrics={"perplexity": ("perplexity", ".1f")},
        chosen_by="perplexity",
        lower_is_better=True,
        methods=METHODS,
    )


def trained(task, folder):
    """The trainer of a run, and in words which weights it has: the best epoch's, or the first epoch's latest."""
    run = Run(task, "unigram", 0, folder)
    if not run.checkpoint.exists():
        raise SystemExit(f"{folder} has no run; train one first, without --measure.")
    trainer, at = run.resume()
    if not at.best:
        return trainer, f"step {at.place} of {trainer.steps} of the first epoch"
    trainer.model.load_state_dict(at.best)
    best = min(at.history, key=lambda row: row[task.chosen_by])
    return trainer, f"epoch {best['epoch']}"


def measure_head(task, options):
    """Print the tables of a trained head, and write them into the page if there is one."""
    torch.set_num_threads(1)
    trainer, done = trained(task, options.out)
    perplexity = trainer.validate()["perplexity"]
    head = trainer.model.head
    states = trainer.states(1, CALIBRATION + options.states)
    tables = measure(
        head.weight.detach().numpy(), head.bias.detach().numpy(), states[:CALIBRATION], states[CALIBRATION:]
    )
    said = f"Weights after {done}; validation perplexity {perplexity:.0f} (first {MEASURED_ROWS} rows of the columns)."
    body = "\n\n".join([said, *(table.markdown() for table in tables)])
    print(body)
    if options.page is not None:
        place(options.page, task.name, body)


def main():
    """Train, or measure."""
    parser = parser_of(__doc__, tuple(METHODS))
    parser.add_argument("--data", type=Path, help="directory of train.txt, valid.txt and test.txt")
    parser.add_argument("--model", choices=list(ENCODERS), default="lstm")
    parser.add_argument("--measure", action="store_true", help="measure AdaptiveSoftmax on the trained head")
    parser.add_argument("--states", type=int, default=300, help="states to measure with")
    options = parser.parse_args()
    if options.measure:
        measure_head(task_of(options.data, options.model), options)
        return
    compare(task_of(options.data, options.model), options, options.epochs or 2)


if __name__ == "__main__":
    main()
