"""The loss over a corpus, with an embedding model and the Trainer of sentence-transformers."""

import pytest
import torch

from softindex.errors import InputError
from softindex.train import MIDXSampler, UniformSampler
from tests.plugins.running import EXAMPLES, printed_by

library = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed: make test-plugins"
)
# Deprecations inside the libraries are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

CORPUS = [f"w{number} w{7 * number % 40} w{number % 9}" for number in range(40)]


def small_model():
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0} | {f"w{number}": number + 1 for number in range(40)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    torch.manual_seed(0)
    return library.SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")


def loss_of(model, sampler, **options):
    from softindex.train.plugins.sentence_transformers import SampledCorpusLoss

    return SampledCorpusLoss(model, CORPUS, sampler, **options)


def batch_of(model, labels):
    return [model.preprocess([f"w{label}" for label in labels]), model.preprocess([CORPUS[one] for one in labels])]


def full_loss(model, labels, scale):
    texts, documents = (
        torch.nn.functional.normalize(model(model.preprocess(part))["sentence_embedding"], dim=1)
        for part in ([f"w{label}" for label in labels], CORPUS)
    )
    return torch.nn.functional.cross_entropy(scale * texts @ documents.T, torch.tensor(labels))


@pytest.mark.parametrize("sampler", [UniformSampler(40), MIDXSampler(40, codewords=4)], ids=["uniform", "midx"])
def test_it_estimates_the_cross_entropy_over_the_corpus(sampler):
    model, labels = small_model(), [3, 17, 3, 30, 8]
    loss = loss_of(model, sampler, draws=20_000, scale=5.0)
    found, full = loss(batch_of(model, labels), torch.tensor(labels)), full_loss(model, labels, 5.0)
    # Weights are at most exp(10) apart; with this many draws the relative error of each sum is a few per cent.
    assert found.item() == pytest.approx(full.item(), abs=0.1)
    found.backward()
    found_gradient = model[0].embedding.weight.grad.clone()
    model.zero_grad()
    full_loss(model, labels, 5.0).backward()
    ours, theirs = found_gradient.flatten(), model[0].embedding.weight.grad.flatten()
    assert torch.cosine_similarity(ours, theirs, dim=0) > 0.98


def test_the_corpus_is_encoded_before_the_first_step_and_when_due():
    model, refreshes = small_model(), []
    loss = loss_of(model, UniformSampler(40), draws=4, refresh_steps=2)
    refresh = loss.sampler.refresh
    loss.sampler.refresh = lambda items: refreshes.append(items.shape) or refresh(items)
    for _ in range(5):
        loss(batch_of(model, [1, 2]), torch.tensor([1, 2]))
    loss.eval()(batch_of(model, [1, 2]), torch.tensor([1, 2]))
    assert refreshes == [(40, 8)] * 3
    assert not model[0].embedding.weight.grad
    assert "UniformSampler" in loss.get_config_dict()["sampler"]


def test_what_does_not_fit_is_refused():
    model = small_model()
    with pytest.raises(InputError, match="7 classes but the corpus 40 documents"):
        loss_of(model, UniformSampler(7))
    loss = loss_of(model, UniformSampler(40))
    with pytest.raises(InputError, match="expected the columns text, document and label"):
        loss(batch_of(model, [1])[:1], torch.tensor([1]))
    with pytest.raises(InputError, match="labels contain the class 40"):
        loss(batch_of(model, [1]), torch.tensor([40]))


def test_the_example_learns(tmp_path):
    assert (EXAMPLES / "embedding_search.py").exists()
    line = printed_by("embedding_search.py", tmp_path)
    before, after = (int(part.split("%")[0]) for part in line.split(": ")[1].split(", "))
    assert before < 5
    assert after > 20
