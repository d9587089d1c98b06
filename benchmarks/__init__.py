"""Accuracy and cost of our own measurement; `make bench` runs every `bench_*.py` here."""
