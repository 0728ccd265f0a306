"""Turns from servers of vLLM."""
