"""What a dataset is cached under: the same for the same content, another for anything that shapes rows."""

from __future__ import annotations

from cohort.data.identity import cache_key, digest


def test_a_digest_is_of_the_value_and_not_of_its_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_rows_that_are_named_otherwise_are_kept_apart() -> None:
    assert cache_key("x", names=["a.jsonl"]) == cache_key("x", names=["a.jsonl"])
    assert len({cache_key("x", names=["a.jsonl"]), cache_key("x", names=["b.jsonl"]), cache_key("y", names=[])}) == 3
