"""Each line of the threat model names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path


def test_every_line_names_a_test_that_exists(repository: Path) -> None:
    page = (repository / "docs" / "threat-model.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| threat")]
    assert len(rows) >= 25
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, row
        for path, name in named:
            text = (repository / path).read_text(encoding="utf-8")
            # without a name: the whole file
            wanted = rf"^def {name}\(" if name else r"^def test_|^Test\w+ = "
            assert re.search(wanted, text, flags=re.MULTILINE), row
