"""How turns are sampled: rows, caches, drafts and folded adapters."""
