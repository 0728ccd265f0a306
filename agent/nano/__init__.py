"""The embedded model: built, taught and trained on the machine; no download."""
