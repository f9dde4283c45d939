"""Blocks have owners, come back, and are found again by what they hold; adapters and versions never share."""

from __future__ import annotations

import random

import pytest

from cohort.serving.block_manager import BlockManager, prompt_hashes


def test_hashes_cover_adapter_version_and_all_tokens_before() -> None:
    prompt = list(range(50))
    own = prompt_hashes(prompt, adapter=("a", 1))
    assert len(own) == 3
    assert prompt_hashes(prompt[:40], adapter=("a", 1)) == own[:2]
    assert prompt_hashes([*prompt[:20], 7, *prompt[21:]], adapter=("a", 1))[0] == own[0]
    assert not set(prompt_hashes([9, *prompt[1:]], adapter=("a", 1))) & set(own)
    for other in (("a", 2), ("b", 1), None, "a"):
        assert not set(prompt_hashes(prompt, adapter=other)) & set(own)


def test_the_last_token_is_always_left_to_compute() -> None:
    assert [len(prompt_hashes([1] * length, adapter=None)) for length in (1, 16, 17, 32, 33)] == [0, 0, 1, 1, 2]


def test_known_content_is_given_away_last_and_the_least_recently_used_first() -> None:
    blocks = BlockManager(4)
    first, second = blocks.take(2), blocks.take(2)
    blocks.remember(first[0], b"x")
    blocks.remember(second[0], b"y")
    blocks.give_back(first)
    blocks.give_back(second)
    assert blocks.num_free == 4
    assert set(blocks.take(2)) == {first[1], second[1]}
    assert blocks.find([b"x", b"y"]) == [first[0], second[0]]
    assert blocks.take(1) == [first[0]]
    assert blocks.find([b"x"]) == []
    assert blocks.find([b"y", b"x"]) == [second[0]]


def test_shared_blocks_stay_until_their_last_owner_leaves() -> None:
    blocks = BlockManager(2)
    own = blocks.take(1)
    blocks.remember(own[0], b"x")
    found = blocks.find([b"x"])
    assert blocks.num_free_without(found) == 1
    blocks.share(found)
    blocks.give_back(own)
    assert blocks.num_free == 1
    blocks.give_back(found)
    assert blocks.num_free == 2
    assert blocks.num_free_without(found) == 1
    assert blocks.num_hits == 1


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks were asked for and 2 are free"):
        BlockManager(2).take(3)


def test_random_owners_never_share_by_accident_and_lose_nothing() -> None:
    random.seed(0)
    blocks = BlockManager(20)
    owned: list[list[int]] = []
    for _ in range(2000):
        if random.random() < 0.5 and blocks.num_free:
            taken = blocks.take(random.randint(1, min(4, blocks.num_free)))
            assert not {*taken} & {block for own in owned for block in own}
            if random.random() < 0.5:
                blocks.remember(taken[0], bytes([random.randrange(30)]))
            owned.append(taken)
        elif owned:
            blocks.give_back(owned.pop(random.randrange(len(owned))))
    for own in owned:
        blocks.give_back(own)
    assert (blocks.num_free, blocks.num_used) == (20, 0)
    assert sorted(blocks.take(20)) == list(range(1, 21))
