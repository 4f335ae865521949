"""Banyan: sentence embeddings that induce their own trees."""

__version__ = "0.1.0"
