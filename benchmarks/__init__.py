"""Benchmarks: what ``make bench`` runs. Ratios side by side in one run, never numbers alone."""
