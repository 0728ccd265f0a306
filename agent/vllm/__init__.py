"""Turns from a server of vLLM."""
