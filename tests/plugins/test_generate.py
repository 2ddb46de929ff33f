"""Decoder: `generate` of Hugging Face returns the tokens that it returns without."""

import pytest
import torch

from softindex.adaptive import Decoder, Head
from softindex.errors import InputError
from tests.plugins.running import printed_by

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-plugins")
# Deprecations inside the libraries are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS, PAD, END = 700, 1, 2


def small_model(family="GPT2", **others):
    """A model whose states lean to a few tokens, as those of trained models do; rows are long enough to be screened."""
    sizes = {"n_embd": 256, "n_layer": 2, "n_head": 4} if family == "GPT2" else {
        "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64,
    }  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=WORDS, bos_token_id=0, eos_token_id=END, pad_token_id=PAD, tie_word_embeddings=False,
        **(sizes | others),
    )  # fmt: skip
    kind = getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")
    model = kind(config).eval()
    # Tied layers of random models repeat the last word.
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        torch.nn.init.normal_(part.weight, std=0.5)
    return model


def padded_prompts():
    """Four prompts of different lengths, padded on the left."""
    words, mask = torch.full((4, 7), PAD), torch.zeros(4, 7, dtype=torch.long)
    random = torch.Generator().manual_seed(3)
    for row, length in enumerate((7, 3, 5, 1)):
        words[row, -length:] = torch.randint(3, WORDS, (length,), generator=random)
        mask[row, -length:] = 1
    return {"input_ids": words, "attention_mask": mask}


@pytest.fixture(scope="module", params=["GPT2", "Llama"])
def model(request):
    return small_model(request.param)


@pytest.fixture(scope="module")
def decoder(model):
    return Decoder(model, threads=1)


def test_greedy_decoding_of_a_padded_batch_is_that_of_the_model(model, decoder):
    options = {**padded_prompts(), "max_new_tokens": 20, "do_sample": False}
    expected = model.generate(**options)
    assert len(expected[:, 7:].unique()) > 5
    assert torch.equal(model.generate(**options, custom_generate=decoder), expected)


def test_each_prompt_alone_gives_what_the_model_gives(model, decoder):
    for start in ([5], [9, 8, 7], list(range(10, 40))):
        options = {"input_ids": torch.tensor([start]), "max_new_tokens": 12, "do_sample": False}
        assert torch.equal(model.generate(**options, custom_generate=decoder), model.generate(**options))


def test_sequences_that_end_are_padded_while_the_others_go_on(model, decoder):
    options = {**padded_prompts(), "max_new_tokens": 20, "do_sample": False}
    free = model.generate(**options)
    # A token that one sequence reaches, and not all at the same step, is declared to be the end.
    end = int(free[0, 7 + 4])
    expected = model.generate(**options, eos_token_id=end)
    assert (expected == PAD).sum() > (padded_prompts()["input_ids"] == PAD).sum()
    assert torch.equal(model.generate(**options, eos_token_id=end, custom_generate=decoder), expected)


def test_sampling_among_the_best_draws_the_same_tokens_for_the_same_seed(model, decoder):
    options = {**padded_prompts(), "max_new_tokens": 10, "do_sample": True, "temperature": 3.0, "top_k": 20}
    for more in ({}, {"top_p": 0.8}):
        torch.manual_seed(4)
        expected = model.generate(**options, **more)
        torch.manual_seed(4)
        assert torch.equal(model.generate(**options, **more, custom_generate=decoder), expected)


def test_draws_without_top_k_follow_the_softmax_and_its_nucleus(model, decoder):
    prompt, count = torch.tensor([[5, 6, 7]]), 4000
    logits = model(prompt).logits[0, -1].double() / 4.0
    for top_p in (1.0, 0.6):
        torch.manual_seed(5)
        options = {"do_sample": True, "top_k": 0, "top_p": top_p, "temperature": 4.0, "max_new_tokens": 1}
        drawn = model.generate(prompt.repeat(count, 1), **options, custom_generate=decoder)[:, -1]
        best = logits.softmax(0).sort(descending=True)
        inside = best.values.cumsum(0) - best.values < top_p
        law = torch.zeros(WORDS, dtype=torch.float64)
        law[best.indices[inside]] = best.values[inside] / best.values[inside].sum()
        assert (law[drawn] > 0).all()
        # The distance between frequencies and the law has mean sqrt(support / (2 pi count)) at most; the seed is fixed.
        away = (torch.bincount(drawn, minlength=WORDS) / count - law).abs().sum() / 2
        assert away < 1.5 * (float(inside.sum()) / (2 * torch.pi * count)) ** 0.5


def test_no_step_multiplies_with_the_output_layer(model, decoder):
    calls = []
    hook = model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    model.generate(**padded_prompts(), max_new_tokens=4, do_sample=False, custom_generate=decoder)
    assert calls == []
    model.generate(**padded_prompts(), max_new_tokens=4, do_sample=False)
    assert len(calls) == 4
    hook.remove()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"repetition_penalty": 1.3}, "RepetitionPenalty"),
        ({"min_new_tokens": 3}, "MinLength"),
        ({"do_sample": True, "min_p": 0.1}, "MinP"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
    ],
)
def test_options_that_need_all_logits_are_refused_and_the_model_stays_as_it_was(model, decoder, options, named):
    layer = model.get_output_embeddings()
    with pytest.raises(InputError, match=f"{named}.* needs the logits of all words"):
        model.generate(**padded_prompts(), max_new_tokens=4, custom_generate=decoder, **options)
    assert model.get_output_embeddings() is layer


def test_a_failing_loop_leaves_the_model_with_its_own_layer(model, decoder):
    layer = model.get_output_embeddings()

    def fail(*_, **__):
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        model.generate(
            **padded_prompts(), max_new_tokens=4, do_sample=False, stopping_criteria=[fail], custom_generate=decoder
        )
    assert model.get_output_embeddings() is layer


def test_a_model_whose_logits_are_not_those_of_its_head_is_refused(model, decoder):
    with pytest.raises(InputError, match="not its head applied"):
        Decoder(small_model("Cohere", logit_scale=7.0))
    with pytest.raises(InputError, match="no linear head"):
        Decoder(model.base_model)
    other = small_model(n_embd=128)
    with pytest.raises(InputError, match="another model"):
        other.generate(torch.tensor([[5]]), max_new_tokens=2, do_sample=False, custom_generate=decoder)


def test_a_head_in_place_of_the_layer_decodes_the_same_tokens():
    model = small_model()
    options = {**padded_prompts(), "max_new_tokens": 20, "do_sample": False}
    expected = model.generate(**options)
    model.lm_head = Head(model.lm_head, threads=1)
    assert torch.equal(model.generate(**options), expected)


def test_the_example_decodes_the_same_tokens(tmp_path):
    assert printed_by("generate_text.py", tmp_path).startswith("the same tokens: True")
