"""A field that nothing reads has to be at its default, or is known to change nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cohort.integrations.trl_fields import ConfigFields, are_names, word_of


class Kind(Enum):
    PLAIN = "plain"


@dataclass
class Config:
    r: int = 8
    bias: str = "none"
    kind: Kind = Kind.PLAIN
    logging_steps: int = 10
    dataloader_drop_last: bool = False
    choices: list[str] | None = field(default=None)


def test_what_is_not_mapped_is_refused_with_its_default_and_the_reason() -> None:
    fields = ConfigFields("Config", Config(r=4, bias="all", dataloader_drop_last=True))
    fields.refuse_others("r")
    first, second = map(str, fields.problems)
    assert "Config: bias: found 'all'; allowed: 'none': adapters have no biases" in first
    # one of a group that has no effect may have one itself
    assert "Config: dataloader_drop_last: found True" in second
    assert "each epoch trains on all rows" in second
    assert fields.without_effect == []


def test_what_changes_nothing_is_named_and_what_is_empty_is_a_default() -> None:
    fields = ConfigFields("Config", Config(logging_steps=1, choices=[]))
    fields.refuse_others("r")
    assert fields.problems == []
    assert fields.without_effect == ["Config.logging_steps=1"]


def test_an_enum_is_its_word() -> None:
    assert [word_of(value) for value in (Kind.PLAIN, "plain", None)] == ["plain", "plain", None]
    assert are_names(["q_proj"])
    assert not are_names("q_proj")
    assert not are_names([3])
