"""Every architecture of docs/models.md: logits, training and saved adapters as transformers' and PEFT's."""

from __future__ import annotations

import pytest

from tests.models.bridge.models_page import ARCHITECTURES, BEGIN, END, PAGE, row_of


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_as_the_table_says(name: str) -> None:
    assert row_of(name) in PAGE.read_text(encoding="utf-8")


def rows_of_the_table() -> list[str]:
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    return [line for line in table.splitlines() if line.startswith("| `")]


def test_the_table_has_every_architecture() -> None:
    assert [line.split("`")[1] for line in rows_of_the_table()] == ARCHITECTURES


def test_at_least_45_are_computed() -> None:
    lines = rows_of_the_table()
    assert sum("| bridged |" in line or "| native |" in line for line in lines) >= 45
