"""Benchmarks: this package and others that do the same work, on the same machine and in turn."""
