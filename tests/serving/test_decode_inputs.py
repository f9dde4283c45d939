"""Each row's token, position, place and pages are in the buffer, whatever came and went before."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from cohort.serving.decode_inputs import DecodeInputs
from cohort.serving.kv_blocks import BLOCK_ROWS

SIZE, PAGES = 16, 6


@dataclass(kw_only=True)
class Row:
    number: int
    tokens: list[int]
    start: int
    blocks: list[int]


def check(inputs: DecodeInputs, rows: list[Row]) -> None:
    inputs.fill(rows)
    tiles = inputs.tiles(most_keys=PAGES * BLOCK_ROWS)
    count = len(rows)
    assert inputs.long_3T[0, :count].tolist() == [row.tokens[-1] for row in rows]
    assert inputs.long_3T[1, :count].tolist() == [row.start for row in rows]
    places = [row.blocks[row.start // BLOCK_ROWS] * BLOCK_ROWS + row.start % BLOCK_ROWS for row in rows]
    assert inputs.long_3T[2, :count].tolist() == places
    assert tiles.tiles_N4[:count, :3].tolist() == [[index, 1, row.start] for index, row in enumerate(rows)]
    homes = tiles.tiles_N4[:count, 3].tolist()
    assert len(set(homes)) == count
    for home, row in zip(homes, rows, strict=True):
        needed = min(len(row.blocks), PAGES)
        assert tiles.tables_SP[home, :needed].tolist() == row.blocks[:needed]
    # what is behind the rows does nothing, and writes into the block of no sequence
    assert not inputs.long_3T[:, count:].any()
    assert not tiles.tiles_N4[count:].any()


def test_sequences_come_grow_and_go() -> None:
    inputs = DecodeInputs(SIZE, pages=PAGES, device=torch.device("cpu"), is_pinned=False)
    rows: list[Row] = []
    chance, number, block = random.Random(3), 0, 1
    for _ in range(60):
        rows = [row for row in rows if chance.random() > 0.15 and row.start + 1 < PAGES * BLOCK_ROWS]
        while len(rows) < SIZE and chance.random() > 0.3:
            start = chance.randrange(40)
            blocks = list(range(block, block + start // BLOCK_ROWS + 1))
            rows.insert(chance.randrange(len(rows) + 1), Row(number=number, tokens=[0], start=start, blocks=blocks))
            number, block = number + 1, block + len(blocks)
        for row in rows:
            row.start, row.tokens = row.start + 1, [chance.randrange(50)]
            if len(row.blocks) * BLOCK_ROWS <= row.start:
                row.blocks.append(block)
                block += 1
        check(inputs, rows)


def test_a_sequence_that_comes_back_has_its_new_pages_and_reserved_ones_may_be_more_than_a_graph_has() -> None:
    inputs = DecodeInputs(SIZE, pages=PAGES, device=torch.device("cpu"), is_pinned=False)
    check(inputs, [Row(number=7, tokens=[1], start=20, blocks=[3, 4])])
    check(inputs, [Row(number=7, tokens=[2], start=21, blocks=[9, 8])])
    check(inputs, [Row(number=7, tokens=[2], start=22, blocks=list(range(30, 30 + 2 * PAGES)))])
