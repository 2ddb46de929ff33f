"""Generate with a Hugging Face causal model on a CPU without multiplying by its entire output layer.

The model is small and its weights are random, so its text means nothing; what matters is that the tokens are the same.
"""

import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from softindex.adaptive import Decoder

WORDS, WIDTH, NEW = 30_000, 512, 16


def random_model():
    """A GPT-2 of one layer, whose states lean towards a few tokens, as those of trained models do."""
    torch.manual_seed(0)
    shape = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 1, "n_head": 8}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


def main():
    """Greedy decoding both ways, then draws."""
    torch.set_num_threads(1)
    model = random_model()
    decoder = Decoder(model, threads=1)
    prompts = torch.randint(1, WORDS, (2, 8), generator=torch.Generator().manual_seed(1))
    options = {"attention_mask": torch.ones_like(prompts), "max_new_tokens": NEW, "do_sample": False}

    spent, found = {}, {}
    for name, more in {"plain": {}, "decoder": {"custom_generate": decoder}}.items():
        model.generate(prompts, **{**options, "max_new_tokens": 2}, **more)
        begin = time.process_time()
        found[name] = model.generate(prompts, **options, **more)
        spent[name] = 1e3 * (time.process_time() - begin)

    options |= {"do_sample": True, "top_k": 0, "top_p": 0.9, "temperature": 0.8}
    drawn = model.generate(prompts, **options, custom_generate=decoder)
    print(f"a draw from the nucleus: {drawn[0, 8:16].tolist()}")
    same = torch.equal(found["plain"], found["decoder"])
    print(
        f"the same tokens: {same}; {spent['plain']:.0f} ms of processor time, {spent['decoder']:.0f} with the decoder"
    )


if __name__ == "__main__":
    main()
