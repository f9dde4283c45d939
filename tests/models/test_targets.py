"""Target modules are selected as PEFT does, and a wrong name is answered with the nearest right ones."""

from __future__ import annotations

from typing import Any

import pytest
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists

from cohort.core.errors import InputError
from cohort.models.targets import ModuleFilter, select_linears, select_parameters

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


def test_a_text_that_is_no_name_is_an_expression_for_the_whole_path() -> None:
    assert select_linears(r".*layers\.[02]\..*proj", paths=PATHS) == tuple(p for p in PATHS if p.split(".")[2] in "02")


@pytest.mark.parametrize(
    ("narrowed", "kept"),
    [
        (ModuleFilter(exclude_modules=("down_proj", "0.mlp.gate_proj", "lm_head")), {"q_proj", "v_proj"}),
        (ModuleFilter(exclude_modules=r".*\.mlp\..*"), {"q_proj", "v_proj"}),
        (ModuleFilter(layers_to_transform=(1, 10)), {"q_proj", "down_proj"}),
        (ModuleFilter(layers_to_transform=(1,), layers_pattern=("blocks", "layers")), {"q_proj", "down_proj"}),
    ],
)
def test_what_is_kept_is_what_peft_keeps(narrowed: ModuleFilter, kept: set[str]) -> None:
    names = ["q_proj", "v_proj", "down_proj"]
    found = select_linears(names, paths=PATHS, narrowed=narrowed)
    config = LoraConfig(
        target_modules=names,
        exclude_modules=_as_peft(narrowed.exclude_modules),
        layers_to_transform=_as_peft(narrowed.layers_to_transform),
        layers_pattern=_as_peft(narrowed.layers_pattern),
    )
    assert found == tuple(p for p in PATHS if check_target_module_exists(config, p) is True)
    assert kept <= {path.rsplit(".", 1)[-1] for path in found}


def _as_peft(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(
    ("narrowed", "words"),
    [
        (ModuleFilter(exclude_modules=("down_prj",)), "'down_prj', which excludes nothing"),
        (ModuleFilter(exclude_modules=".*"), "every targeted linear left out"),
        (ModuleFilter(layers_to_transform=(11, 12)), "layers 0 to 10"),
        (ModuleFilter(layers_pattern=("layers",)), "layers_pattern with layers_to_transform"),
        (ModuleFilter(layers_to_transform=(1,), layers_pattern=("h",)), "the model's list of layers"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(narrowed: ModuleFilter, words: str) -> None:
    with pytest.raises(InputError, match=words):
        select_linears("all-linear", paths=PATHS, narrowed=narrowed)


PARAMETERS = tuple(f"model.layers.{n}.mlp.experts.{own}" for n in range(3) for own in ("gate_up_proj", "down_proj"))


def test_parameters_are_selected_by_the_ends_of_their_paths() -> None:
    found = select_parameters(["mlp.experts.down_proj"], paths=PARAMETERS, architecture="A")
    assert found == PARAMETERS[1::2]
    assert select_parameters(["layers.1.mlp.experts.down_proj"], paths=PARAMETERS, architecture="A") == PARAMETERS[3:4]
    assert select_parameters(["down_proj", PARAMETERS[0]], paths=PARAMETERS, architecture="A")[0] == PARAMETERS[0]
    assert select_parameters([], paths=(), architecture="A") == ()


def test_a_parameter_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        select_parameters(["mlp.experts.gate_proj", "down_proj"], paths=PARAMETERS, architecture="A")
    (problem,) = caught.value.problems
    assert str(problem.where) == "lora.target_parameters[0]"
    assert "mlp.experts.gate_up_proj" in problem.hint


def test_a_dense_model_has_no_experts_to_adapt() -> None:
    with pytest.raises(InputError, match="LlamaForCausalLM has no experts"):
        select_parameters(["mlp.experts.down_proj"], paths=(), architecture="LlamaForCausalLM")


@pytest.mark.parametrize(
    ("name", "parameter"), [("down_proj", "mlp.experts.down_proj"), ("gate_proj", "mlp.experts.gate_up_proj")]
)
def test_experts_among_modules_are_shown_their_key(name: str, parameter: str) -> None:
    with pytest.raises(InputError, match=rf"write target_parameters: \[{parameter}\]"):
        select_linears(["q_proj", name], paths=("model.layers.0.self_attn.q_proj",), parameters=PARAMETERS)
