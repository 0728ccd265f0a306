"""Policies, which answer the frames of an episode: text in, text out."""
