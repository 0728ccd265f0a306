"""Other systems that the benchmarks compare this one with."""
