"""Files of vectors as bytes, for the tests of the readers."""

import json

import numpy as np

VECTORS = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
WORDS = ["the", "New York", "naïve", "日本", "\u00a0", "of\u2028all"]


def fvecs_bytes(vectors):
    rows, dimensions = vectors.shape
    words = np.empty((rows, 1 + dimensions), "<i4")
    words[:, 0] = dimensions
    words[:, 1:] = vectors.astype("<f4").view("<i4")
    return words.tobytes()


def bvecs_bytes(vectors):
    rows, dimensions = vectors.shape
    heads = np.full((rows, 1), dimensions, "<i4").view(np.uint8)
    return np.hstack([heads, vectors]).tobytes()


def safetensors_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def text_bytes(words, vectors, head=b"", tail=b""):
    lines = [
        f"{word} {' '.join(map(repr, row))}".encode() + tail for word, row in zip(words, vectors.tolist(), strict=True)
    ]
    return head + b"\n".join(lines) + b"\n"
