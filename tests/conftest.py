"""The fixtures of `support.py`, for every test here; tests import its helpers from there by name."""

from support import backend, cli, hub, pretraining_model, trained

__all__ = ["backend", "cli", "hub", "pretraining_model", "trained"]
