"""The proof of a model before it trains: what packs passes, what leaks or looks ahead is refused by its layer."""

from __future__ import annotations

import functools
import inspect
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.lfm2 import modeling_lfm2
from transformers.models.olmo_hybrid import modeling_olmo_hybrid
from transformers.models.qwen3_5 import modeling_qwen3_5

from cohort.core.errors import InputError
from cohort.models.bridge import probe, recurrent
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.bridge.loading import wrap_model
from cohort.models.bridge.probe import prove
from cohort.models.bridge.sequence_bounds import SequenceBounds
from cohort.models.config_file import read_config
from cohort.models.weight_formats import PLAIN
from tests.models.bridge.architectures import save_tiny


def wrapped(folder: Path, *, is_packed: bool = True, dtype: torch.dtype = torch.float32) -> BridgedDecoder:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    device = torch.device("cpu")
    return wrap_model(model, read_config(folder), device=device, weight_format=PLAIN, is_packed=is_packed)


@pytest.mark.parametrize(
    "name",
    ["gpt_neox", "gpt2", "gemma4_text", "gpt_oss", "olmoe", "deepseek_v3", "lfm2", "qwen3_5_text", "olmo_hybrid"],
)
def test_a_stream_of_one_row_is_proved(tmp_path: Path, name: str) -> None:
    """Windows, sinks, grouped heads, experts, values of another width than keys, and recurrent layers."""
    decoder = wrapped(save_tiny(name, tmp_path))
    prove(decoder, where="model")
    assert decoder.unadaptable == {}
    assert decoder.model.config._attn_implementation == "cohort_packed"


@pytest.mark.parametrize(("name", "layer"), [("bamba", r"model\.layers\.0"), ("recurrent_gemma", r"model\.layers\.0")])
def test_a_leak_is_refused_with_the_first_layer_that_differs(tmp_path: Path, name: str, layer: str) -> None:
    """The state of a Mamba block, or of a recurrent one, runs on over the bound."""
    with pytest.raises(
        InputError, match=rf"model: found .*in one stream.*first behind {layer}; allowed.*another base model"
    ):
        prove(wrapped(save_tiny(name, tmp_path)), where="model")


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5_text", "olmoe", "gpt_oss"])
def test_sums_in_another_order_are_no_leak_in_16_bits(tmp_path: Path, name: str) -> None:
    prove(wrapped(save_tiny(name, tmp_path), dtype=torch.bfloat16), where="model")


def test_a_leak_of_two_rows_in_one_layer_is_found_in_16_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution over three rows, in a first layer whose other neighbours keep to their sequences."""
    decoder = wrapped(save_tiny("lfm2", tmp_path), dtype=torch.bfloat16)
    bound: Any = modeling_lfm2.causal_conv1d_fn
    first = decoder.model.get_submodule("model.layers.0.conv")
    monkeypatch.setattr(first, "forward", leaking(first.forward, monkeypatch, bound))
    with pytest.raises(InputError, match=r"first behind model\.layers\.0"):
        prove(decoder, where="model")


def leaking(forward: Any, monkeypatch: pytest.MonkeyPatch, bound: Any) -> Any:
    """Let a layer call its convolution without the bounds of sequences."""

    def run(*arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(modeling_lfm2, "causal_conv1d_fn", bound.__wrapped__)
            return forward(*arguments, **options)

    return run


def test_a_wrong_factor_on_the_logits_is_found(tmp_path: Path) -> None:
    decoder = wrapped(save_tiny("arcee", tmp_path), is_packed=False)
    decoder.head.__dict__["_bias_N"] = torch.ones(decoder.head.out_features)
    with pytest.raises(InputError, match=r"other logits .* first behind the loss head"):
        prove(decoder, where="model")


def test_a_model_that_sees_later_positions_is_refused(tmp_path: Path) -> None:
    decoder = wrapped(save_tiny("seed_oss", tmp_path), is_packed=False)

    def backwards(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output + output.flip(1)

    decoder.model.get_submodule("model.layers.0.mlp").register_forward_hook(backwards)
    with pytest.raises(InputError, match="positions see later ones"):
        prove(decoder, where="model")


def test_linears_that_no_row_passes_are_noted(tmp_path: Path) -> None:
    decoder = wrapped(save_tiny("seed_oss", tmp_path), is_packed=False)
    layer = decoder.model.get_submodule("model.layers.1.mlp")
    twice = layer.down_proj
    layer.register_forward_hook(lambda *_: (twice(torch.zeros(1, 3, twice.in_features)), None)[1])
    prove(decoder, where="model")
    assert decoder.unadaptable == {"model.layers.1.mlp.down_proj": "which does not see each row of a sequence once"}


def test_a_model_that_takes_no_positions_is_refused_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model: found BloomForCausalLM, which .*; allowed: "):
        prove(wrapped(save_tiny("bloom", tmp_path)), where="model")


def test_a_recurrent_function_is_what_it_was_outside_of_a_packed_pass(tmp_path: Path) -> None:
    prove(wrapped(save_tiny("lfm2", tmp_path)), where="model")
    function: Any = modeling_lfm2.causal_conv1d_fn
    x, weight = torch.randn(1, 8, 41), torch.randn(8, 3)
    assert torch.equal(function(x, weight, None), function.__wrapped__(x, weight, None))


def taking_bounds(seen: list[Any], torch_form: Any) -> Any:
    """Return a delta rule as transformers wraps that of another package, which takes bounds."""
    applicable_params = ("q", "k", "v", "g", "beta", "initial_state", "output_final_state", "cu_seqlens")

    @functools.wraps(torch_form)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        given = {name: value for name, value in options.items() if name in applicable_params}
        offsets = given["cu_seqlens"]
        seen.append([0, arguments[0].shape[1]] if offsets is None else offsets.tolist())
        bounds = list(pairwise(seen[-1]))
        own = {name: given[name] for name in ("g", "beta")}
        pieces = [
            torch_form(
                *(x[:, start:stop] for x in arguments),
                **{name: x[:, start:stop] for name, x in own.items()},
                use_qk_l2norm_in_kernel=True,
            )[0]
            for start, stop in bounds
        ]
        return torch.cat(pieces, dim=1), None

    return wrapped


def test_a_delta_rule_of_another_package_gets_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes them is called once for a whole stream, rows behind the last sequence among them."""
    seen: list[Any] = []
    bare = inspect.unwrap(modeling_qwen3_5.torch_chunk_gated_delta_rule)
    theirs = taking_bounds(seen, bare)
    monkeypatch.setattr(modeling_qwen3_5, "torch_chunk_gated_delta_rule", theirs)
    monkeypatch.setattr(recurrent, "_is_taken_elsewhere", lambda *_: True)
    decoder = wrapped(save_tiny("qwen3_5_text", tmp_path))
    prove(decoder, where="model")
    # two of its four layers are recurrent, and three streams prove it
    assert [bounds for bounds in seen if len(bounds) > 2] == 6 * [[0, 7, 20, 41]]


@pytest.mark.parametrize(("name", "file"), [("olmo_hybrid", modeling_olmo_hybrid), ("lfm2", modeling_lfm2)])
def test_a_convolution_of_another_package_is_called_once_with_empty_rows_between_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: Any
) -> None:
    """One takes its taps by name, the other by place; both see sequences of 7, 13 and 21 rows and two gaps."""
    seen: list[int] = []
    torch_form: Any = inspect.unwrap(file.causal_conv1d_fn)

    @functools.wraps(torch_form)
    def theirs(x: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        seen.append(x.shape[2])
        return torch_form(x, *arguments, **options)

    monkeypatch.setattr(file, "causal_conv1d_fn", theirs)
    monkeypatch.setattr(recurrent, "_is_taken_elsewhere", lambda *_: True)
    decoder = wrapped(save_tiny(name, tmp_path))
    prove(decoder, where="model")
    width = next(module.kernel_size[0] for module in decoder.model.modules() if isinstance(module, torch.nn.Conv1d))
    packed = [rows for rows in seen if rows > 21]
    assert packed
    assert set(packed) == {41 + 2 * (width - 1)}


def test_without_one_sequences_of_about_one_length_go_side_by_side() -> None:
    bounds = SequenceBounds(ends=(0, 7, 7, 200, 290))
    groups = bounds.groups(300, torch.device("cpu"))
    assert [list(group.source_BL.shape) for group in groups] == [[2, 64], [1, 128], [1, 256]]
    rows = torch.cat([group.row_R for group in groups])
    assert sorted(rows.tolist()) == list(range(300))
    assert bounds.groups(300, torch.device("cpu")) is groups


def test_deep_models_of_16_bits_may_differ_by_what_rounding_alone_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = wrapped(save_tiny("gpt_neox", tmp_path), dtype=torch.bfloat16)
    monkeypatch.setattr(probe, "_ROUNDED_TOLERANCE", 4e-3)
    prove(decoder, where="model")
    monkeypatch.setattr(probe, "_TWO_ROUNDINGS", 0.0)
    with pytest.raises(InputError, match="other logits"):
        prove(decoder, where="model")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_leak_that_rounding_would_hide_is_found_by_changing_a_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    decoder = wrapped(save_tiny("bamba", tmp_path), dtype=dtype)
    monkeypatch.setattr(probe, "_difference", lambda *_, **__: 0.0)
    with pytest.raises(InputError, match="a sequence change with another sequence of the stream"):
        prove(decoder, where="model")
