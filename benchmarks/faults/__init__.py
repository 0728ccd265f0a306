"""Faults and kills in real runs of the chain."""
