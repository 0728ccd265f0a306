"""A user's files or a data set of the Hub as problems: read, aligned, checked and split."""
