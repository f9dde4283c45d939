"""The pages of the Python API say what the docstrings say."""

from __future__ import annotations

import cohort
from tools.api_pages import FOLDER, PAGES, api_pages


def test_the_pages_are_those_of_the_docstrings() -> None:
    # a plain truth value: a long diff would hide what to do
    is_same = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")} == api_pages()
    assert is_same, "docs/api/ is out of date; write it again with: python tools/api_pages.py"


def test_every_public_name_has_a_page() -> None:
    names = [name for page in PAGES.values() for name in page.names]
    assert sorted(names) == sorted(name for name in cohort.__all__ if name != "__version__")
