"""Decode with a language model on a CPU without multiplying by its entire output layer.

The model is small and its weights are random, so its text means nothing; what matters is that the tokens are the same.
For a Hugging Face model the two lines are `head = softindex.adaptive.Head(model.lm_head)` and
`model.lm_head = head`; `model.generate(...)` then decodes greedily as before.
"""

import time

import torch
from torch import nn

from softindex.adaptive import Head

WORDS, WIDTH, STEPS = 20_000, 512, 20


class Model(nn.Module):
    """A recurrent language model; `lm_head` is its output layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS)
        # The states of a trained model lean towards a few tokens.
        nn.init.normal_(self.lm_head.weight, std=1.5)

    def forward(self, tokens, state):
        """The state (b, d) after these tokens (b,): what the output layer is applied to."""
        return self.cell(self.words(tokens), state)


@torch.no_grad()
def decode(model, prompt, choose):
    """Tokens (b, STEPS) that follow the prompt (b,), and the seconds spent on choosing them."""
    tokens, state, result, spent = prompt, None, [], 0.0
    for _ in range(STEPS):
        state = model(tokens, state)
        begin = time.perf_counter()
        tokens = choose(state)
        spent += time.perf_counter() - begin
        result.append(tokens)
    return torch.stack(result, dim=1), spent


def main():
    """Greedy decoding both ways, then draws and a nucleus."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model().eval()
    head = Head(model.lm_head, threads=1)
    prompt = torch.tensor([1, 2])

    plain, plain_seconds = decode(model, prompt, lambda state: model.lm_head(state).argmax(dim=-1))
    ours, our_seconds = decode(model, prompt, lambda state: head.top_k(state, 1).ids[:, 0])
    print(f"the same tokens: {torch.equal(plain, ours)}")
    print(f"output layer: {1e3 * plain_seconds:.1f} ms as a product, {1e3 * our_seconds:.1f} ms with the head")

    # Code that wants logits gets those of the best tokens.  (This is what `generate` uses.)
    dropped_in, _ = decode(model, prompt, lambda state: head(state).argmax(dim=-1))
    print(f"the same through forward: {torch.equal(plain, dropped_in)}")

    state = model(prompt, None).detach()
    nucleus = head.nucleus(state, 0.9)
    print(f"tokens with 90 % of the probability: {(nucleus.ids >= 0).sum(dim=1).tolist()}")
    drawn, _ = decode(model, prompt, lambda state: head.sample(state, temperature=0.8, top_p=0.9).ids[:, 0])
    print(f"a draw: {drawn[0, :8].tolist()}")


if __name__ == "__main__":
    main()
