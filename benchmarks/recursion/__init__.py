"""Comparison of a recursive policy with agents without children."""
