"""Adapters for training libraries; each module needs the library it is named after, which nothing else imports.

- `softindex.train.plugins.lightning`: a callback that refreshes the sampler; `pytorch_lightning`: the same for the
  older name of the library.
- `softindex.train.plugins.transformers`: a Trainer for causal language models, and the same callback.
- `softindex.train.plugins.sentence_transformers`: a loss against negatives drawn from a corpus.
- `softindex.train.plugins.rectools`: a loss for the transformer models of RecTools.
"""
