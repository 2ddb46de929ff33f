"""The Trainer of Hugging Face, with the loss of a language model's head sampled."""

import pytest
import torch

from softindex.errors import InputError
from softindex.train import MIDXSampler, Refresher, SampledSoftmaxLoss, UniformSampler
from tests.plugins.running import printed_by

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-plugins")
pytest.importorskip("accelerate", reason="accelerate is not installed: make test-plugins")
# Deprecations inside the libraries are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = 300
TEXTS = [{"input_ids": row, "labels": row} for row in torch.randint(WORDS, (24, 9), generator=torch.manual_seed(0))]


def small_model(family="GPT2", **others):
    config = getattr(transformers, f"{family}Config")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2} if family == "GPT2" else {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    torch.manual_seed(0)
    kind = getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return kind(config(vocab_size=WORDS, **sizes, **tokens, **others))


def trainer_of(model, loss, folder, callbacks=(), **others):
    from softindex.train.plugins.transformers import SampledTrainer

    options = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": 0.01} | others
    arguments = transformers.TrainingArguments(
        folder, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, **options
    )
    return SampledTrainer(
        model=model,
        args=arguments,
        train_dataset=TEXTS,
        eval_dataset=TEXTS,
        callbacks=list(callbacks),
        sampled_loss=loss,
    )


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_the_loss_of_a_step_estimates_the_loss_of_the_model(family, tmp_path):
    model = small_model(family).eval()
    loss = SampledSoftmaxLoss(MIDXSampler(WORDS, residual="oracle"), draws=4000)
    trainer = trainer_of(model, loss, tmp_path)
    loss.sampler.refresh(model.get_output_embeddings())
    batch = {"input_ids": torch.stack([one["input_ids"] for one in TEXTS])}
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] < 30, -100)
    full = model(**batch).loss
    # The Trainer decides by the mode of the model; without dropout the modes agree.
    for part in model.modules():
        part.p = 0.0
    assert trainer.compute_loss(model, batch).item() == pytest.approx(full.item())
    sampled = trainer.compute_loss(model.train(), batch)
    # Draws from the softmax itself: each query's log Z has a standard deviation below 1 / sqrt(4000).
    assert sampled.item() == pytest.approx(full.item(), abs=0.01)


def test_training_never_computes_the_logits_of_all_words(tmp_path):
    from softindex.train.plugins.transformers import RefreshCallback

    model = small_model()
    loss = SampledSoftmaxLoss(MIDXSampler(WORDS, codewords=8, residual="weighted"), draws=20)
    refresher = Refresher(loss.sampler, model.get_output_embeddings(), steps=2, background=False)
    trainer = trainer_of(model, loss, tmp_path, [RefreshCallback(refresher, loss)])
    before, calls = trainer.evaluate()["eval_loss"], []
    model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    trainer.train()
    assert calls == []
    assert refresher.refreshes == 1 + 3
    assert trainer.evaluate()["eval_loss"] < before


@pytest.mark.parametrize("accumulated", [1, 3])
def test_accumulated_batches_are_one_step(accumulated, tmp_path):
    from softindex.train.plugins.transformers import RefreshCallback

    model = small_model()
    loss = SampledSoftmaxLoss(UniformSampler(WORDS), draws=20)
    refresher = Refresher(loss.sampler, steps=1, background=False)
    callbacks = [RefreshCallback(refresher, loss)]
    result = trainer_of(model, loss, tmp_path, callbacks, gradient_accumulation_steps=accumulated).train()
    assert refresher.refreshes == 6 // accumulated
    # The reported loss is a mean, however many batches make a step; guessing among 300 words has 5.7.
    assert result.training_loss == pytest.approx(5.7, abs=0.6)


def test_a_model_or_a_loss_that_does_not_fit_is_refused(tmp_path):
    loss = SampledSoftmaxLoss(UniformSampler(WORDS))
    with pytest.raises(InputError, match="the head has 300 rows but the sampler 7 classes"):
        trainer_of(small_model(), SampledSoftmaxLoss(UniformSampler(7)), tmp_path)
    with pytest.raises(InputError, match="expected a causal language model"):
        trainer_of(small_model().transformer, loss, tmp_path)
    with pytest.raises(InputError, match="not its head applied"):
        trainer_of(small_model("Cohere", logit_scale=7.0), loss, tmp_path)
    with pytest.raises(InputError, match='returns "mean"'):
        trainer_of(small_model(), SampledSoftmaxLoss(UniformSampler(WORDS), reduction="sum"), tmp_path)


def test_the_example_learns(tmp_path):
    line = printed_by("trainer_language_model.py", tmp_path)
    before, after = (float(part.split()[0]) for part in line.split(": ")[1].split(", "))
    assert after < before - 0.5
