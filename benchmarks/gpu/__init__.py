"""Measurements of one graphics card, on random weights."""
