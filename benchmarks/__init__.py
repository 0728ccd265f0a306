"""Measurements that are too long for a test: `python -m benchmarks.NAME --help`."""
