"""Benchmarks that ``make bench`` runs. They compare alternatives in one run; absolute numbers alone mean little."""
