"""Scoring encoders."""
