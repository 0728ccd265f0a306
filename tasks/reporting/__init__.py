"""Figures, HTML pages, the training log and progress on a terminal."""
