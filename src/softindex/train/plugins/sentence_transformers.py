"""SampledCorpusLoss: trains an embedding model of sentence-transformers against negatives drawn from a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count
from softindex.errors import InputError, show
from softindex.train.checks import check_number, check_range
from softindex.train.contract import Sampler
from softindex.train.loss import sampled_cross_entropy
from softindex.train.plugins.watching import missing

try:
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    raise missing("sentence-transformers", '"sentence-transformers[train]"', error) from error

__all__ = ["SampledCorpusLoss"]


class SampledCorpusLoss(nn.Module):
    """Cross-entropy of each text's document among all documents of a corpus, from a few drawn documents.

    The logit is `scale` times the cosine.  Negatives are drawn once per batch, close to the softmax over the
    corpus if the sampler is.  Besides the batch, only these are encoded with gradients, and their log q corrects the
    sum over the corpus.  In-batch negatives, as in MultipleNegativesRankingLoss, occur as often as the document does
    in the data, and are not corrected for that.

    The dataset has the columns text, document and label; the label is the number of the document in the corpus.

    Args:
        model: The embedding model.
        corpus: Texts of all documents.
        sampler: Sampler of as many classes as there are documents.
        draws: Documents drawn for each batch.
        scale: Factor of the cosine, 1 / temperature.
        refresh_steps: Encode the corpus and refresh the sampler before the first step and after this many steps.  This
            encodes every document once, without gradients.
        encode_batch: Documents encoded at once in a refresh.

    Raises:
        InputError: When the sampler has another number of classes, or an argument is wrong.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        corpus: Sequence[str],
        sampler: Sampler,
        *,
        draws: int = 64,
        scale: float = 20.0,
        refresh_steps: int = 500,
        encode_batch: int = 64,
    ) -> None:
        super().__init__()
        if not isinstance(sampler, Sampler):
            raise InputError(f"sampler is {show(sampler)}; expected one of the samplers of softindex.train.")
        if sampler.num_items != len(corpus):
            raise InputError(f"the sampler has {sampler.num_items} classes but the corpus {len(corpus)} documents.")
        self.model, self.sampler, self.corpus = model, sampler, corpus
        self.draws, self.scale = check_count(draws, "draws"), check_number(scale, "scale", 0, 1e6)
        self.refresh_steps = check_count(refresh_steps, "refresh_steps")
        self.encode_batch = check_count(encode_batch, "encode_batch")
        self._steps = 0

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the mean loss of a batch.

        Args:
            sentence_features: Tokens of the texts, then of their documents.
            labels: Numbers of the documents, (b,).

        Raises:
            InputError: When there are no labels, or other than two columns of text.
        """
        columns = list(sentence_features)
        if len(columns) != 2 or labels is None:
            raise InputError("expected the columns text, document and label, where label is the document's number.")
        check_range(labels, len(self.corpus), "labels")
        if self.training:
            if self._steps % self.refresh_steps == 0:
                self.refresh()
            self._steps += 1
        texts, documents = (self._unit(self.model(one)["sentence_embedding"]) for one in columns)
        queries = self.scale * texts
        drawn = self.sampler.sample(queries, self.draws, shared=True, positives=labels)
        # Documents that were drawn twice are encoded once.
        ids, places = torch.unique(drawn.ids, return_inverse=True)
        negatives = self._encode([self.corpus[int(number)] for number in ids])[places]
        positive = (queries * documents).sum(1, keepdim=True)
        losses, _ = sampled_cross_entropy(positive, queries @ negatives.T, labels[:, None], drawn)
        return losses.mean()

    @torch.no_grad()
    def refresh(self) -> None:
        """Encode the corpus with the current model, and refresh the sampler with the result."""
        training = self.model.training
        self.model.eval()
        size = self.encode_batch
        parts = [self._encode(self.corpus[begin : begin + size]) for begin in range(0, len(self.corpus), size)]
        self.model.train(training)
        self.sampler.refresh(torch.cat(parts).float())

    def get_config_dict(self) -> dict[str, Any]:
        """Options that the model card shows."""
        return {"sampler": repr(self.sampler), "draws": self.draws, "scale": self.scale}

    def _encode(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors (n, d) of texts."""
        features = self.model.preprocess(list(texts))
        device = self.model.device
        on_device = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
        return self._unit(self.model(on_device)["sentence_embedding"])

    @staticmethod
    def _unit(vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=-1)
