"""Benchmark of inference: the engines of this library beside the alternatives, in one run."""
