"""Train text encoders with a cosine and with a mixture of logits to find the paragraph that a sentence begins.

    python -m experiments.text_retrieval --data wikitext-2 --seeds 3 --out runs/texts --page page.md

The directory contains train.txt.gz, valid.txt.gz and test.txt.gz, with one paragraph per line.  The encoders and the
task are those of examples/text_retrieval.py; the validation articles select the epoch.  Without --data the paragraphs
are made up.  Repeat the command to continue an interrupted run.
"""

from pathlib import Path

import torch

from examples import text_retrieval as example
from experiments.harness.command import Task, compare, parser_of, rated
from experiments.harness.products import parameters_of
from experiments.harness.runs import Trainer, shuffled

METHODS = {"cosine": "cosine, one component", "mol": "mixture of logits"}
MODELS = {"cosine": example.Product, "mol": example.Mixture}
PARTS = ("train", "valid", "test")


class TextTrainer(Trainer):
    """Trains an encoder to find the rest of a paragraph by its first sentence.

    parts: word numbers of sentences and of the rest, for training, validation and test; words: in the vocabulary.
    """

    def __init__(self, parts, words, method, seed):
        name, multiple = rated(method)
        self.parts, self.seed = parts, seed
        self.model = MODELS[name](words)
        self.objective = torch.nn.Identity()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=multiple * example.RATE)
        self.steps = len(parts[0][0]) // example.BATCH

    def step(self, epoch, place):
        """Train on the next paragraphs in the order of this epoch."""
        self.model.train()
        sentences, rests = self.parts[0]
        rows = shuffled(len(sentences), self.seed, epoch)[place * example.BATCH : (place + 1) * example.BATCH]
        return self.descend(self.model.loss(sentences[rows], rests[rows]))

    def validate(self):
        """Recall among the paragraphs of the validation articles."""
        return self._recall(self.parts[1])

    def test(self):
        """Recall among the paragraphs of the test articles."""
        return self._recall(self.parts[2])

    def _recall(self, part):
        found = example.recalls(self.model, *part)
        return {f"recall@{k}": recall for k, recall in zip(example.KS, found, strict=True)}


def load(folder):
    """Pairs of sentences and rests for training, validation and test; made up if folder is None."""
    if folder is None:
        return [example.made_up(seed, count) for seed, count in ((0, 640), (1, 150), (2, 150))]
    return [example.read(folder / f"{part}.txt.gz") for part in PARTS]


def main():
    """Compare the similarities."""
    parser = parser_of(__doc__, METHODS)
    parser.add_argument("--data", type=Path, help="directory of train.txt.gz, valid.txt.gz and test.txt.gz")
    options = parser.parse_args()
    pairs = load(options.data)
    numbers = example.vocabulary(pairs[0])
    parts, words = [example.numbered(part, numbers) for part in pairs], len(numbers) + 2
    name = "made-up paragraphs" if options.data is None else options.data.name
    task = Task(
        name="text-retrieval",
        title=f"Text retrieval, {name}",
        settings={
            "paragraphs": len(pairs[0]),
            "searched": len(pairs[2]),
            "words": words,
            "width": example.WIDTH,
            "length": example.LENGTH,
            "batch": example.BATCH,
            "rate": example.RATE,
            "temperature": example.TEMPERATURE,
        },
        make=lambda method, seed: TextTrainer(parts, words, method, seed),
        metrics={f"recall@{k}": (f"recall@{k}", ".4f") for k in example.KS},
        chosen_by="recall@10",
        lower_is_better=False,
        methods=METHODS,
        columns={"parameters": lambda method: f"{parameters_of(MODELS[rated(method)[0]](words)):,}"},
    )
    compare(task, options, options.epochs or 4)


if __name__ == "__main__":
    main()
