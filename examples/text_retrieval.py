"""Find the paragraph that a sentence begins: a small text encoder with a mixture of logits, and with a dot product.

    python examples/text_retrieval.py --data wikitext-2

--data is a folder with train.txt.gz and test.txt.gz in the format of WikiText-2, one paragraph per line.  The query is
the first sentence of a paragraph, and the answer is the rest of it.  The encoders are trained on the paragraphs of the
training articles, and search those of the test articles, which they never saw.  Without --data the paragraphs are made
up.  Both encoders have the same number of parameters within 1 %, the same batches, and 128 numbers per text:

- dot product: one component of 128.
- mixture of logits: four components of 32, pooled from the states of all words, and a gate that weights their 4 x 4
  products.
"""

import argparse
import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import softindex
from softindex import mol

WIDTH, COMPONENTS, SIZE, LENGTH = 64, 4, 32, 48
TEMPERATURE, BALANCE, BATCH, RATE = 0.05, 0.001, 64, 2e-3
KS = (1, 10, 100)


class Encoder(nn.Module):
    """Components (b, count, size) of texts (b, LENGTH) of word numbers, where 0 is padding."""

    def __init__(self, words, count, size, hidden):
        super().__init__()
        self.words = nn.Embedding(words, WIDTH, padding_idx=0)
        self.pooling = mol.ComponentPooling(WIDTH, count, size, max_length=LENGTH + count, hidden=hidden)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, 0.1, batch_first=True, norm_first=True)

    def forward(self, texts):
        """One layer of attention over words and aggregation tokens, then pooling."""
        states, mask = self.pooling.insert(self.words(texts), texts != 0)
        return self.pooling(self.layer(states, src_key_padding_mask=~mask), mask)


class Mixture(nn.Module):
    """An encoder, and a mixture of the logits of its components."""

    def __init__(self, words):
        super().__init__()
        self.encoder = Encoder(words, COMPONENTS, SIZE, hidden=64)
        shape = {"query_components": COMPONENTS, "item_components": COMPONENTS, "component_dim": SIZE}
        self.similarity = mol.MixtureOfLogits(None, None, gates="logits", temperature=TEMPERATURE, **shape)

    def loss(self, queries, answers):
        """Each query's answer against the answers of the batch, plus the loss that balances the components."""
        logits, weights = self.similarity(self.encoder(queries), self.encoder(answers), with_weights=True)
        labels = torch.arange(len(logits))
        balance = mol.mutual_information_loss(weights[labels, labels])
        return functional.cross_entropy(logits, labels) + BALANCE * balance

    def search(self, queries, answers, k):
        """Numbers (b, k) of the best answers."""
        index = mol.build(self.similarity, self.encoder(answers))
        return index.top_k(self.encoder(queries).numpy(), k).ids


class Product(nn.Module):
    """An encoder with one long component; its gate network is wider, so that it has as many parameters."""

    def __init__(self, words):
        super().__init__()
        self.encoder = Encoder(words, 1, COMPONENTS * SIZE, hidden=139)

    def loss(self, queries, answers):
        """Each query's answer against the answers of the batch."""
        logits = self.encoder(queries)[:, 0] @ self.encoder(answers)[:, 0].T / TEMPERATURE
        return functional.cross_entropy(logits, torch.arange(len(logits)))

    def search(self, queries, answers, k):
        """Numbers (b, k) of the best answers."""
        index = softindex.build(self.encoder(answers)[:, 0].numpy())
        return index.top_k(self.encoder(queries)[:, 0].numpy(), k).ids


def read(path):
    """First sentence and rest, as lists of words, of every paragraph that has more than one sentence."""
    pairs = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            words = line.lower().split()
            end = words.index(".") + 1 if "." in words else len(words)
            if words[:1] != ["="] and end >= 5 and len(words) - end >= 10:
                pairs.append((words[:end], words[end:]))
    return pairs


def made_up(seed, count):
    """Paragraphs about one of 20 subjects and one of 20 places: a sentence names both, the rest uses their words."""
    rng = np.random.default_rng(seed)
    pairs = []
    for subject, spot in rng.integers(20, size=(count, 2)):
        words = [[f"{kind}{number}.{word}" for word in range(6)] for kind, number in (("s", subject), ("p", spot))]
        both = [str(word) for word in rng.permutation([*words[0], *words[1]])]
        pairs.append((both[:5], both[5:]))
    return pairs


def vocabulary(pairs):
    """Numbers from 2 on of the words that occur more than once."""
    counts = Counter(word for pair in pairs for text in pair for word in text)
    return {word: number for number, (word, count) in enumerate(counts.most_common(), 2) if count > 1}


def numbered(pairs, numbers):
    """Word numbers of the sentences and of the rests, (n, LENGTH) each; 0 for padding, 1 for unknown words."""
    sides = np.zeros((2, len(pairs), LENGTH), np.int64)
    for place, pair in enumerate(pairs):
        for row, words in zip(sides[:, place], pair, strict=True):
            known = [numbers.get(word, 1) for word in words[:LENGTH]]
            row[: len(known)] = known
    return torch.from_numpy(sides)


def train(model, queries, answers, epochs):
    """Adam on shuffled batches."""
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for epoch in range(epochs):
        total = 0.0
        batches = torch.randperm(len(queries)).split(BATCH)[: len(queries) // BATCH]
        for rows in batches:
            loss = model.loss(queries[rows], answers[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item()
        print(f"  epoch {epoch + 1}: loss {total / len(batches):.3f}", flush=True)


@torch.no_grad()
def recalls(model, queries, answers):
    """Share of queries whose answer is among the k best, by k; `answers` must not repeat."""
    model.eval()
    found = model.search(queries, answers, max(KS)) == np.arange(len(queries))[:, None]
    return [float(found[:, :k].any(axis=1).mean()) for k in KS]


def main():
    """Train both encoders, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.txt.gz and test.txt.gz")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.data is None:
        learned, asked = made_up(0, 1280), made_up(1, 200)
    else:
        learned, asked = (read(options.data / f"{name}.txt.gz") for name in ("train", "test"))
    numbers = vocabulary(learned)
    (queries, answers), (test_queries, test_answers) = (numbered(pairs, numbers) for pairs in (learned, asked))
    print(f"{len(queries):,} paragraphs to learn from, {len(asked):,} to find, {len(numbers) + 2:,} words")
    for name, kind in (("dot product", Product), ("mixture of logits", Mixture)):
        model = kind(len(numbers) + 2)
        train(model, queries, answers, options.epochs)
        size = sum(weights.numel() for weights in model.parameters())
        found = recalls(model, test_queries, test_answers)
        shown = [f"recall@{k} {recall:.3f}" for k, recall in zip(KS, found, strict=True)]
        print(f"{name}, {size:,} parameters: {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
