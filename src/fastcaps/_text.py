"""Escape untrusted names, such as those of classes and files, for terminals and figures.

HTML is escaped by its templates.
"""

import unicodedata

# Unicode categories that a terminal interprets or hides, or that can't be encoded; joiners are parts of words.
_HIDDEN, _JOINERS = ("Cc", "Cf", "Cs", "Zl", "Zp"), "\u200c\u200d"
_LONGEST = 60


def printable(text: str, keep: str = "") -> str:
    r"""Return a text for a terminal: control characters become visible, such as ``\x1b``, except those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(_visible(character) if character not in keep else character for character in text)


def figure_label(text: str) -> str:
    """Return a text for a figure: on one line, not too long, without the formulas of Matplotlib."""
    text = printable(text)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    return text.replace("$", r"\$")


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN or character in _JOINERS:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()
