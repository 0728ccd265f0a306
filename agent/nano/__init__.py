"""The embedded model, built and trained on the machine without a download."""
