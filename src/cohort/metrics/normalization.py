"""What of a text counts: its answer by a pattern, its last number, its words without case and punctuation."""

from __future__ import annotations

import re
import string
import unicodedata
from decimal import Decimal

__all__ = ["find_answer", "last_number", "normalized", "words"]

# a sign counts where nothing is joined to its left: 3-4 holds 3 and 4
_NUMBER = re.compile(
    r"(?P<sign>(?<!\w)[-+\u2212])?[$€£]?(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"|\.[0-9]+)(?P<exponent>[eE][-+]?[0-9]{1,3}(?!\w))?"
)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WORD = re.compile(r"[^\W_]+")


def find_answer(text: str, pattern: str | None) -> str | None:
    """Return the last match of ``pattern`` in ``text``: its first group that took part, or all of it; None without one.

    The last match, since answers come at the end of a chain of thought. Without a pattern the whole text is the answer.
    """
    if pattern is None:
        return text.strip()
    last = None
    for match in re.finditer(pattern, text):
        last = match
    if last is None:
        return None
    return next((group for group in last.groups() if group is not None), last.group()).strip()


def last_number(text: str) -> Decimal | None:
    """Return the last number of ``text``: ``1,234.50`` and ``$1234.5`` are the same; None where there is none."""
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    if last is None:
        return None
    value = Decimal(last["digits"].replace(",", "") + (last["exponent"] or ""))
    return -value if last["sign"] in ("-", "\u2212") else value


def normalized(text: str) -> str:
    """Return ``text`` without case, punctuation, English articles and repeated white space.

    Source: SQuAD's evaluation script. We differ where nothing would be left: the answer ``A`` of a multiple choice is
    no article, and ``?`` is not equal to ``!``.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    bare = "".join(character for character in plain if not _is_punctuation(character))
    without_articles = " ".join(_ARTICLES.sub(" ", bare).split())
    return without_articles or " ".join(bare.split()) or text.strip()


def words(text: str) -> list[str]:
    """Return the letters and digits of ``text`` in runs, without case."""
    return _WORD.findall(text.casefold())


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
