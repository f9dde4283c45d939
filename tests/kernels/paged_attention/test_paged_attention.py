"""Pages against the definition: grouped heads, odd widths, windows, pieces, empty tiles, and poisoned memory."""

from __future__ import annotations

import pytest
import torch

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.paged_attention import NewPages, PagedTiles, paged_attention, store_pages
from cohort.kernels.paged_attention.reference import paged_attention_reference

PAGE = 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def case(
    parts: list[tuple[int, int]], *, queries: int, heads: tuple[int, int] = (4, 2), width: int = 8, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, PagedTiles]:
    """Sequences with ``(start, count)`` new positions each, and pages in any order; what is behind them is NaN."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-(start + count) // PAGE) for start, count in parts]
    order = (1 + torch.randperm(sum(pages), generator=generator)).tolist()
    k, v = torch.full((2, (sum(pages) + 1) * PAGE, heads[1], width), torch.nan)
    tables = torch.zeros(len(parts), max(pages), dtype=torch.int32)
    tiles, row = [], 0
    for sequence, ((start, count), num) in enumerate(zip(parts, pages, strict=True)):
        own = [order.pop() for _ in range(num)]
        tables[sequence, :num] = torch.tensor(own)
        for position in range(start + count):
            place = own[position // PAGE] * PAGE + position % PAGE
            k[place], v[place] = torch.randn(2, heads[1], width, generator=generator)
        for first in range(start, start + count, queries):
            size = min(queries, start + count - first)
            tiles.append((row, size, first, sequence))
            row += size
    tiles.append((0, 0, 0, 0))
    q = torch.randn(row + 3, heads[0], width, generator=generator)
    most = max(start + count for start, count in parts)
    tables_of = PagedTiles(
        tiles_N4=torch.tensor(tiles, dtype=torch.int32, device=DEVICE),
        tables_SP=tables.to(DEVICE),
        queries=queries,
        most_keys=most,
    )
    return q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), tables_of


@pytest.mark.parametrize(
    ("parts", "queries", "heads", "width", "window"),
    [
        ([(0, 1), (16, 1), (40, 1), (15, 1)], 1, (4, 2), 8, None),
        ([(300, 1), (3, 1), (511, 1), (512, 1)], 1, (6, 2), 6, None),
        ([(300, 1), (3, 1)], 1, (2, 2), 16, 20),
        ([(0, 37), (32, 5), (16, 16)], 16, (4, 1), 8, None),
        ([(0, 37), (112, 20)], 16, (4, 2), 12, 30),
    ],
)
def test_equals_the_definition(
    parts: list[tuple[int, int]], queries: int, heads: tuple[int, int], width: int, window: int | None
) -> None:
    q, k, v, tiles = case(parts, queries=queries, heads=heads, width=width)
    found = paged_attention(q, k, v, tiles=tiles, page_rows=PAGE, window=window, backend=Backend.TRITON)
    expected = paged_attention_reference(
        q, k, v, tiles_N4=tiles.tiles_N4, tables_SP=tiles.tables_SP, page_rows=PAGE, window=window
    )
    # float32 sums of at most 513 terms, in other orders
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not found[-3:].any()


def test_neighbours_change_no_bit() -> None:
    q, k, v, tiles = case([(300, 1), (3, 1)], queries=1)
    together = paged_attention(q, k, v, tiles=tiles, page_rows=PAGE, backend=Backend.TRITON)
    alone = PagedTiles(tiles_N4=tiles.tiles_N4[1:2], tables_SP=tiles.tables_SP, queries=1, most_keys=4)
    found = paged_attention(q, k, v, tiles=alone, page_rows=PAGE, backend=Backend.TRITON)
    assert torch.equal(found[1], together[1])


def test_rows_of_no_tile_keep_what_was_there() -> None:
    q, k, v, tiles = case([(5, 1)], queries=1)
    for backend in Backend:
        given = torch.full_like(q, 7.0)
        paged_attention(q, k, v, tiles=tiles, page_rows=PAGE, o_THE=given, backend=backend)
        assert (given[1:] == 7.0).all()
        assert (given[0] != 7.0).all()


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("window", [None, 20])
def test_new_positions_are_stored_before_they_are_read(backend: Backend, window: int | None) -> None:
    parts = [(300, 1), (3, 1), (0, 1), (256, 1)]
    q, k, v, tiles = case(parts, queries=1)
    expected = paged_attention(q, k, v, tiles=tiles, page_rows=PAGE, window=window, backend=backend)
    tables = tiles.tables_SP.cpu()
    rows = torch.tensor([int(tables[s, p // PAGE]) * PAGE + p % PAGE for s, (p, _) in enumerate(parts)] + [0] * 3)
    # a fused product's columns are not next to each other; rows of no tile hold anything
    fused = torch.full((7, 3, *k.shape[1:]), torch.nan, device=DEVICE)
    fused[:4, 0], fused[:4, 1] = k[rows[:4].to(DEVICE)], v[rows[:4].to(DEVICE)]
    missing_k, missing_v = k.clone(), v.clone()
    missing_k[rows[:4]] = missing_v[rows[:4]] = torch.nan
    new = NewPages(k_TGE=fused[:, 0], v_TGE=fused[:, 1], rows_T=rows.to(DEVICE))
    for _ in range(2):  # what programs count by is zero again
        found = paged_attention(
            q, missing_k, missing_v, tiles=tiles, page_rows=PAGE, window=window, new=new, backend=backend
        )
        assert torch.equal(found, expected)
    assert torch.equal(missing_k[PAGE:].nan_to_num(), k[PAGE:].nan_to_num())
    assert torch.equal(missing_v[PAGE:].nan_to_num(), v[PAGE:].nan_to_num())


def test_heads_that_do_not_fit_are_refused() -> None:
    q, k, v, tiles = case([(5, 1)], queries=1)
    with pytest.raises(ShapeError, match="do not fit"):
        paged_attention(q[:, :3], k, v, tiles=tiles, page_rows=PAGE)


def test_new_keys_and_values_are_stored_where_they_belong() -> None:
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(5, 3, 2, 6, generator=generator).to(DEVICE)
    k, v = qkv[:, 1].clone(), qkv[:, 2]
    rows = torch.tensor([7, 2, 9, 0, 4], device=DEVICE)
    found = {}
    for backend in Backend:
        keys, values = torch.zeros(2, 10, 2, 6, device=DEVICE)
        store_pages(k, v, keys_RGE=keys, values_RGE=values, rows_T=rows, backend=backend)
        found[backend] = (keys, values)
        assert torch.equal(keys[rows], k)
        assert torch.equal(values[rows], v)
        assert not keys[[1, 3, 5, 6, 8]].any()
    with pytest.raises(ShapeError, match="do not fit 4 rows"):
        store_pages(k, v, keys_RGE=keys, values_RGE=values, rows_T=rows[:4])
