"""Ids, keys and names of blobs."""

from __future__ import annotations

import re

from cohort.store.random_names import SeededSource, SystemSource, key_digest, new_blob_name, new_id, new_key_text


def test_ids_are_letters_and_digits_of_one_length() -> None:
    made = {new_id(SystemSource(), "ftjob-") for _ in range(200)}
    assert len(made) == 200
    assert all(re.fullmatch(r"ftjob-[0-9A-Za-z]{24}", each) for each in made)


def test_names_of_blobs_spread_over_folders() -> None:
    made = {new_blob_name(SystemSource()) for _ in range(200)}
    assert all(re.fullmatch(r"([0-9a-f]{2})/\1[0-9a-f]{30}", each) for each in made)
    assert len({each[:2] for each in made}) > 50


def test_a_seed_gives_the_same_names() -> None:
    def names(seed: int) -> list[str]:
        source = SeededSource(seed)
        return [new_id(source, "x"), new_key_text(source, prefix="k-"), new_blob_name(source)]

    assert names(1) == names(1)
    assert not set(names(1)) & set(names(2))


def test_a_digest_is_of_the_whole_text() -> None:
    text = new_key_text(SystemSource(), prefix="sk-")
    assert key_digest(text) != key_digest(text.removeprefix("sk-"))
    assert re.fullmatch(r"[0-9a-f]{64}", key_digest("\ud800"))
