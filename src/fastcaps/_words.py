"""Suggestions in errors about unknown names."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question such as `` (did you mean mnist?)`` if a name is close to a known one; otherwise nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""
