"""Benchmarks of speed and memory, one command per claim, side by side with other libraries."""
