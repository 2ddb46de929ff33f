"""Shared code of the experiments: the compared methods, runs that can be resumed, models, and result pages."""
