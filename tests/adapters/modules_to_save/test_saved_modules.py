"""Where the tables of whole modules stand in rank rows."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SavedModules
from cohort.adapters.spec import AdapterSpec, VariantError
from cohort.adapters.variants.vera_settings import VectorAdapter

BOTH = SavedModules(names=(EMBEDDING, HEAD), vocab_size=7, hidden_size=3, width=10)


def test_tables_share_no_entry_and_fill_the_fewest_rows() -> None:
    assert BOTH.num_rows == 5
    rows = torch.zeros(5, 10)
    BOTH.table(rows, EMBEDDING).add_(1)
    BOTH.table(rows, HEAD).add_(2)
    assert rows.view(-1)[:42].tolist() == [1.0] * 21 + [2.0] * 21
    assert not rows.view(-1)[42:].any()


def test_rank_rows_of_the_factors_come_first_and_all_are_trained() -> None:
    for spec, row in (
        (AdapterSpec(r=4, lora_alpha=8, saved=BOTH), 16),
        (AdapterSpec(r=17, lora_alpha=8, saved=BOTH), 32),
        (AdapterSpec(r=4, lora_alpha=8, use_dora=True, saved=BOTH), 32),
    ):
        assert (spec.saved_row, spec.num_rows, spec.num_trained_rows) == (row, row + 5, row + 5)
        assert not spec.has_only_factors


@pytest.mark.parametrize("other", [{"init_lora_weights": "pissa"}, {"use_vera": VectorAdapter()}])
def test_an_adapter_whose_rows_are_not_all_trained_has_none(other: dict[str, object]) -> None:
    with pytest.raises(VariantError, match="modules_to_save with"):
        AdapterSpec(r=4, lora_alpha=8, saved=BOTH, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [(), (HEAD, EMBEDDING), ("norm",)])
def test_names_have_one_order(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="in this order"):
        SavedModules(names=names, vocab_size=7, hidden_size=3, width=10)
