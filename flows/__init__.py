"""The chain as prose, and the command line."""
