"""Text from names, records and files made safe for each output format; one function a format."""

from __future__ import annotations

import re
import unicodedata

# Cells that a spreadsheet would run as a formula.
_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")

_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",
    "]": "{]}",
    "±": r"\ensuremath{\pm}",
    "×": r"\ensuremath{\times}",
    "≤": r"\ensuremath{\le}",
    "≥": r"\ensuremath{\ge}",
    "–": "--",
    "—": "---",
}
# Capital Greek letters that look like Latin ones have no command of their own.
_GREEK_AS_LATIN = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True))


def plain(value: object) -> str:
    """One printable line: line breaks become blanks, other controls and bidi marks their code point in words."""
    return "".join(_printable(ch) for ch in str(value)).strip()


def _printable(ch: str) -> str:
    if ch in "\t\n\r\x0b\x0c\x85\u2028\u2029":
        return " "
    if unicodedata.category(ch) in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return f"[U+{ord(ch):04X}]"
    return ch


def csv_text(value: object) -> str:
    """Text of one CSV cell (the csv writer adds the quotes): a would-be formula gets a leading apostrophe."""
    text = plain(value)
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def markdown(value: object) -> str:
    """Text of one cell of a Markdown table: no markup, no HTML, no bar."""
    text = "".join(_HTML.get(ch, ch) for ch in plain(value))
    return _MARKDOWN.sub(r"\\\1", text)


def latex(value: object) -> str:
    """Text that plain LaTeX sets as it stands, in any engine; letters it has no glyph for appear by code point."""
    return "".join(_latex_letter(ch) for ch in plain(value))


def _latex_letter(ch: str) -> str:
    if ch in _LATEX:
        return _LATEX[ch]
    if ord(ch) < 128 or ("\u00c0" <= ch <= "\u00ff" and ch not in "ÐÞðþ÷"):  # no glyph in the old font encoding
        return ch
    if ch in _GREEK_AS_LATIN:
        return _GREEK_AS_LATIN[ch]
    words = unicodedata.name(ch, "").split()
    if words[:1] == ["GREEK"] and len(words) == 4 and words[2] == "LETTER" and words[1] in ("SMALL", "CAPITAL"):
        name = {"LAMDA": "lambda"}.get(words[3], words[3].lower())
        return rf"\ensuremath{{\{name.capitalize() if words[1] == 'CAPITAL' else name}}}"
    return f"{{[}}U+{ord(ch):04X}{{]}}"
