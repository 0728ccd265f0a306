"""Weights, tokenizers and templates, from any source."""
