"""``python -m fastcaps`` is ``fastcaps``."""

from fastcaps.cli import main

main()
