"""The tree of an episode: frames, their turns, sub-calls and budget."""

from env.server.tree.tree import TEXT_BYTES, Tree

__all__ = ["TEXT_BYTES", "Tree"]
