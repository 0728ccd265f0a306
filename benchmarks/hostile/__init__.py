"""Attackers beside honest episodes: what the environment withstands."""
