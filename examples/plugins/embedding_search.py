"""Train text embeddings with sentence-transformers against documents drawn from the entire corpus."""

import random
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from softindex.train import MIDXSampler
from softindex.train.plugins.sentence_transformers import SampledCorpusLoss

DOCUMENTS, WORDS, EXAMPLES = 1_000, 600, 2_000


def small_model():
    """A mean of word vectors, with a vocabulary of made-up words: nothing is downloaded."""
    vocabulary = {"[UNK]": 0} | {f"w{number}": number + 1 for number in range(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a word, not a password
    tokenizer.pre_tokenizer = Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device="cpu")


def made_up():
    """Documents of eight words, and texts that share three words with theirs, each in another form."""
    chance = random.Random(0)
    documents = [[chance.randrange(WORDS // 2) for _ in range(8)] for _ in range(DOCUMENTS)]
    labels = [chance.randrange(DOCUMENTS) for _ in range(EXAMPLES)]
    texts = [" ".join(f"w{word + WORDS // 2}" for word in chance.sample(documents[label], 3)) for label in labels]
    return [" ".join(f"w{word}" for word in words) for words in documents], texts, labels


def accuracy(model, corpus, texts, labels):
    """Share of texts whose document is the nearest."""
    vectors, queries = (torch.as_tensor(model.encode(part, normalize_embeddings=True)) for part in (corpus, texts))
    return ((queries @ vectors.T).argmax(1) == torch.tensor(labels)).float().mean().item()


def main():
    """Train on most of the texts, and search with the others."""
    torch.manual_seed(0)
    corpus, texts, labels = made_up()
    held = EXAMPLES // 4
    model = small_model()
    loss = SampledCorpusLoss(model, corpus, MIDXSampler(DOCUMENTS, codewords=16), draws=64, refresh_steps=50)
    before = accuracy(model, corpus, texts[:held], labels[:held])
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=10,
            per_device_train_batch_size=64,
            learning_rate=0.05,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        columns = {
            "text": texts[held:],
            "document": [corpus[label] for label in labels[held:]],
            "label": labels[held:],
        }
        SentenceTransformerTrainer(model, arguments, Dataset.from_dict(columns), loss=loss).train()
    after = accuracy(model, corpus, texts[:held], labels[:held])
    print(f"right document first, {held} new texts: {before:.0%} before, {after:.0%} after")


if __name__ == "__main__":
    main()
