"""The feed-forward block whose down product is augmented, and a whole decoder, against the same without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace
from cohort.kernels.packed_mlp import triton as fused
from cohort.kernels.segments import SegmentTable
from cohort.models import weights
from cohort.models.attention import PackedAttention
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from cohort.models.weights import load_decoder
from tests.kernels.closeness import assert_near, low_precision
from tests.kernels.packed_linear.cases import SMALL as LINEAR_TILES
from tests.kernels.packed_mlp.cases import SMALL, Case, assert_equal_to_reference, make_case
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

AUGMENTED = replace(LINEAR_TILES, term_forward=TermPlace.AUGMENTED, augmented_columns=128, augmented_rows=1)
APART = replace(LINEAR_TILES, augmented_rows=1)


def run(case: Case) -> dict[str, Tensor]:
    hidden, width = case.down.shape
    wide = torch.full((hidden, width + 128), torch.nan, dtype=case.down.dtype, device=case.down.device)
    wide[:, :width] = case.down
    arguments: dict[str, Any] = {
        "gate_up": FrozenLinear(case.gate_up), "gate_up_parts": case.parts[:2], "down_part": case.parts[2],
        "down": FrozenLinear(wide, in_features=width), "tables": case.tables(), "row_keys_T": case.row_keys,
        "tiles": SMALL,
    }  # fmt: skip
    for sink in (sink for part in case.parts for sink in (part.grad_a_RK, part.grad_b_RN)):
        assert sink is not None
        sink.zero_()
    y, (g, s, s_down) = fused.mlp_forward(case.x, down_tiles=AUGMENTED, **arguments)
    dx = fused.mlp_backward(case.dy, x_TD=case.x, g_TF=g, s_PTC=s, s_down_PTC=s_down, **arguments)
    assert dx is not None
    return {"y": y, "dx": dx} | case.sinks()


@pytest.mark.parametrize(
    "options",
    [
        {"lengths": [20, 0, 1, 37], "ranks": [8, 3, 1, 20]},
        {"lengths": [20, 35], "ranks": [8, 40], "dropouts": [0.1, 0.5]},
        {"lengths": [0, 12, 0], "ranks": [0, 8, 0]},
    ],
    ids=str,
)
def test_float32_equals_the_definition(triton_device: str, options: dict[str, Any]) -> None:
    case = make_case(triton_device, **options)
    assert_equal_to_reference(case, run(case))


def test_a_factor_that_is_not_finite_stays_in_its_slot(triton_device: str) -> None:
    options: dict[str, Any] = {"lengths": [20, 13, 33], "ranks": [8, 16, 24], "dtype": low_precision(triton_device)}
    expected = run(make_case(triton_device, **options))
    case = make_case(triton_device, **options)
    rows, ranks = case.segments.rows(1), case.slots.rank_rows(1)
    case.parts[2].b_RN[ranks.start + 3, 7] = torch.nan
    found = run(case)
    others = torch.ones(case.x.shape[0], dtype=torch.bool, device=case.x.device)
    others[rows] = False
    assert torch.equal(found["y"][others], expected["y"][others])
    assert bool(found["y"][rows].isnan().all())


def test_a_decoder_with_augmented_products_equals_one_without(
    triton_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer, o and down augmented: attention and the activation write into the room, autograd follows."""
    folder = save_checkpoint(tmp_path, "Llama", hidden_size=32, intermediate_size=48, num_hidden_layers=1)
    dtype = low_precision(triton_device)
    lengths, num_rows = (9, 14), 32
    segments = SegmentTable.from_samples(lengths, slots=[0, 1], num_slots=2, num_rows=num_rows)
    positions = torch.cat([torch.arange(length) for length in (*lengths, num_rows - sum(lengths))]).to(triton_device)
    tokens = (torch.arange(num_rows, device=triton_device) * 7) % 67
    calls: list[int] = []
    product = grouped.augmented_product

    def counted(*arguments: Any, **options: Any) -> Tensor:
        calls.append(1)
        return product(*arguments, **options)

    for module in (grouped, fused):
        monkeypatch.setattr(module, "augmented_product", counted)

    monkeypatch.setattr(weights.WeightDtype, "on", lambda *_: dtype)
    decoder = load_decoder(folder, device=triton_device)
    for linear in (decoder.layers[0].linears[1], decoder.layers[0].linears[3]):
        assert isinstance(linear.frozen, FrozenLinear)
        linear.frozen.reserve_columns(64)
        assert linear.frozen.spare_NC is not None
        linear.frozen.spare_NC.fill_(torch.nan)
    bank = AdapterBank(
        AdapterLayout(decoder.linears), num_slots=2, num_rank_rows=48, device=triton_device, compute_dtype=dtype
    )
    torch.manual_seed(0)
    for r in (5, 20):
        state = AdapterState(weights=torch.randn(r, bank.layout.width, device=triton_device) * 0.05)
        bank.insert(AdapterSpec(r=r, lora_alpha=2.0 * r), state)
    outcomes = []
    for tiles in (APART, AUGMENTED):
        monkeypatch.setattr(grouped, "_tiles", lambda *_, chosen=tiles, **__: chosen)
        bank.grads_RD.zero_()
        with use_backend(Backend.TRITON):
            hidden = decoder.forward(
                tokens,
                positions_T=positions,
                attention=PackedAttention((0, 9, 23)),
                lora=bank.context(segments),
            )
            hidden.backward(torch.ones_like(hidden))
        outcomes.append((hidden.detach(), bank.grads_RD.clone()))
    assert len(calls) == 2
    for apart, augmented in zip(*outcomes, strict=True):
        # two roundings more or fewer of 16-bit intermediates, carried through the rest of the layer
        assert_near(augmented.to(dtype), apart.to(dtype), roundings=8)
