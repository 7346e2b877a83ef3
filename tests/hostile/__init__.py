"""Damaged and hostile files against every reader of the library: ``python -m tests.hostile --tries 100000``."""
