"""A user's files as problems: read, aligned, checked and split."""
