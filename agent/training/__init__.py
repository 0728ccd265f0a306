"""GRPO on trees of episodes: groups, rows, loss, curriculum, checkpoints, export."""
