"""What tests of several ranks share."""

from __future__ import annotations

import pytest

from cohort.ranks.rank_process import RankProcess


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RankProcess]:
    """The ranks other than rank 0, as they are started."""
    found: list[RankProcess] = []
    begin = RankProcess.__init__

    def noted(self: RankProcess, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        found.append(self)

    monkeypatch.setattr(RankProcess, "__init__", noted)
    return found
