"""Every page is in the site's menu, once, and what a page links to is copied next to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tools import docs_site
from tools.docs_site import linked_files, pages

NAV = re.findall(r"^ +- ([\w./-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
# reached from the index of decisions, from the README, or from the code host
UNLISTED = {"LICENSE.md", "SECURITY.md", "THIRD_PARTY_NOTICES.md"}


def test_every_page_is_in_the_menu_once() -> None:
    wanted = {path.as_posix() for path in pages() if "decisions/0" not in path.as_posix()} - UNLISTED
    assert sorted(NAV) == sorted(wanted)


def test_what_pages_link_to_is_found() -> None:
    found = {path for page in pages() for path in linked_files(page)}
    assert Path("docs/figures/quickstart-report.png") in found
    assert Path("benchmarks/results/whole_sweep_1b.json") in found


def test_a_link_to_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "REPOSITORY", tmp_path)
    (tmp_path / "page.md").write_text("```text\n[shown](nowhere.md)\n```\n[here](page.md#part) [gone](gone.md)\n")
    with pytest.raises(ValueError, match=r"page\.md: gone\.md leads to nothing"):
        linked_files(Path("page.md"))
