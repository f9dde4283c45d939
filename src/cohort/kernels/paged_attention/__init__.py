"""Attention of new positions over keys and values that lie in pages of a pool."""

from cohort.kernels.paged_attention.op import NewPages, PagedTiles, paged_attention, store_pages

__all__ = ["NewPages", "PagedTiles", "paged_attention", "store_pages"]
