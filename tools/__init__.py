"""Tools for those who work on fastcaps."""
