"""A benchmark of long contexts: counts over messages whose topic only a reader knows."""
