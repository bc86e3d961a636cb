"""Vocabulary that every package shares: levels, rungs, posterior kinds and model families. Free of torch."""
