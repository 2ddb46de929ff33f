"""The training experiments behind the published results; run one with `python -m experiments.<name>`."""
