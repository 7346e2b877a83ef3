"""The trained networks of fastcaps: one run folder each. `fastcaps.bundled` finds them by name."""
