"""A seed depends on what it is for, on every machine alike."""

from __future__ import annotations

from cohort.core.seeds import derive_seed


def test_seeds_are_the_same_on_every_machine() -> None:
    # recorded runs resume only while these stay as they are
    assert derive_seed(0, "order", 0) == 6369009268948332814
    assert 0 <= derive_seed("x") < 2**63


def test_every_part_counts_with_its_type_and_place() -> None:
    seeds = {derive_seed(*parts) for parts in ((1, 2), (2, 1), (1, "2"), (12,), ("1", 2), (1, 2, 0))}
    assert len(seeds) == 6
