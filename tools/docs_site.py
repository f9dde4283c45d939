"""Copy the documents and what they link to into ``build/site-source``, laid out as in the repository, for mkdocs.

The pages link to results, examples and sources with the paths they have here, so that they read the same on any code
host. In a copy with the same layout mkdocs can check all of these links. ``make docs`` runs it.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

__all__ = ["REPOSITORY", "linked_files", "pages"]

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "build" / "site-source"


def pages() -> list[Path]:
    """Return every document, relative to the repository."""
    found = [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
        *REPOSITORY.glob("examples/*/README.md"),
    ]
    return sorted(path.relative_to(REPOSITORY) for path in found)


def linked_files(page: Path) -> list[Path]:
    """Return the files of the repository that a page links to or shows, relative to the repository.

    Raises:
        ValueError: a link leads to nothing.
    """
    text = re.sub(
        r"^ *```.*?^ *```", "", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    found = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (REPOSITORY / page.parent / target).resolve()
        if not path.exists():
            raise ValueError(f"{page}: {target} leads to nothing")
        if path.is_file():
            found.append(path.relative_to(REPOSITORY))
    return found


def main() -> int:
    """Copy, and say what leads to nothing."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    wanted = set(pages())
    try:
        for page in pages():
            wanted.update(linked_files(page))
    except ValueError as error:
        print(error)
        return 1
    for path in sorted(wanted):
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / path, SOURCE / path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
