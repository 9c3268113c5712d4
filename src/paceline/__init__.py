"""Speculative decoding: the same text, never slower, nothing hidden."""

__version__ = "0.1.0"
