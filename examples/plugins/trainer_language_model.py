"""Train a small GPT-2 with the Hugging Face Trainer, without the logits of all words in a training step."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from softindex.train import MIDXSampler, Refresher, SampledSoftmaxLoss
from softindex.train.plugins.transformers import RefreshCallback, SampledTrainer

WORDS, LENGTH, TEXTS = 5_000, 16, 512


class Texts(Dataset):
    """Synthetic texts in which the next word depends on the last one."""

    def __init__(self, seed):
        random = torch.Generator().manual_seed(seed)
        words = [torch.randint(WORDS, (TEXTS,), generator=random)]
        for _ in range(LENGTH - 1):
            # Half of the time the successor of the word, otherwise a frequent word.
            other = (torch.rand(TEXTS, generator=random) ** 4 * WORDS).long()
            words.append(torch.where(torch.rand(TEXTS, generator=random) < 0.5, (words[-1] + 1) % WORDS, other))
        self.words = torch.stack(words, 1)

    def __len__(self):
        return TEXTS

    def __getitem__(self, row):
        """A text; the Trainer compares each position with the word after it."""
        return {"input_ids": self.words[row], "labels": self.words[row]}


def main():
    """Train, and evaluate with the full softmax before and after."""
    torch.manual_seed(0)
    shape = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    head = model.get_output_embeddings()
    loss = SampledSoftmaxLoss(MIDXSampler(WORDS, codewords=32, residual="weighted"), draws=50)
    texts = Texts(0)
    frequencies = torch.bincount(texts.words.flatten(), minlength=WORDS)
    with (
        tempfile.TemporaryDirectory() as folder,
        Refresher(loss.sampler, head, frequencies=frequencies, steps=50) as refresher,
    ):
        trainer = SampledTrainer(
            model=model,
            args=TrainingArguments(
                folder,
                num_train_epochs=6,
                per_device_train_batch_size=32,
                learning_rate=1e-2,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=texts,
            eval_dataset=Texts(1),
            callbacks=[RefreshCallback(refresher, loss)],
            sampled_loss=loss,
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    print(f"cross-entropy over all {WORDS:,} words: {before:.3f} before, {after:.3f} after")


if __name__ == "__main__":
    main()
