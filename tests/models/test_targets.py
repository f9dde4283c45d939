"""Target modules are selected as PEFT does, and a wrong name is answered with the nearest right ones."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.models.targets import select_linears

PATHS = [
    f"model.layers.{layer}.{path}"
    for layer in range(11)
    for path in ("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj")
]


def test_all_linear_takes_everything() -> None:
    assert select_linears("all-linear", paths=PATHS) == tuple(PATHS)
    assert select_linears(["all-linear"], paths=PATHS) == tuple(PATHS)


def test_names_are_path_suffixes_in_the_models_order() -> None:
    assert select_linears(["v_proj", "q_proj"], paths=PATHS) == tuple(
        p for p in PATHS if p.endswith(("q_proj", "v_proj"))
    )
    assert select_linears("mlp.down_proj", paths=PATHS) == tuple(p for p in PATHS if p.endswith("down_proj"))
    assert select_linears(["1.mlp.down_proj"], paths=PATHS) == ("model.layers.1.mlp.down_proj",)
    assert select_linears([PATHS[5]], paths=PATHS) == (PATHS[5],)


def test_every_unknown_name_is_listed_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        select_linears(["q_prj", "proj", "down_proj", "lm_head"], paths=PATHS)
    texts = [str(problem) for problem in caught.value.problems]
    assert len(texts) == 3
    assert (
        "'q_prj'; allowed: all-linear, or a list of down_proj, gate_proj, q_proj, v_proj. Did you mean q_proj"
        in texts[0]
    )
    assert "'proj'" in texts[1]
    assert "'lm_head'" in texts[2]


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InputError, match="empty list"):
        select_linears([], paths=PATHS)
