"""Gate FP8 and FP4 KV caches on golden agent turns, and decide."""

__version__ = "0.1.0"
