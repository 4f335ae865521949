"""The fixtures of `support.py`, for every test here; tests import its helpers from there by name."""

from support import backend, cli, pretraining_model, trained

__all__ = ["backend", "cli", "pretraining_model", "trained"]
