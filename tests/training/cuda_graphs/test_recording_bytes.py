"""How many layers tell what all of them take, and that they do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.captured_pass import CapturedPass
from cohort.training.cuda_graphs.few_layers import first_layers
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from cohort.training.cuda_graphs.recording_bytes import estimate_depths, extrapolated_bytes
from cohort.training.device_memory import StorageMeter
from tests.training.small_models import save_llama


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    save_llama(directory, num_layers=12)
    return load_decoder(directory, dtype="float32", device="cpu")


def of_layers(decoder: Decoder, count: int, *, windows: tuple[int | None, ...] = (None,)) -> Any:
    """Return a decoder of ``count`` times the first layer of ``decoder``, whose windows come in turn."""
    config = SimpleNamespace(windows=(windows * count)[:count], is_sparse=lambda _: False)
    return SimpleNamespace(ring=None, layers=decoder.layers[:1] * count, part=range(count), config=config)


@pytest.mark.parametrize(
    ("count", "depths"), [(80, (2, 12)), (32, (2, 6)), (16, (2, 4)), (12, (2, 3)), (9, None), (1, None)]
)
def test_a_quarter_of_the_layers_tells_unless_there_are_few(
    decoder: Decoder, count: int, depths: tuple[int, int] | None
) -> None:
    assert estimate_depths(of_layers(decoder, count), adapted=decoder.linears) == depths


def test_layers_whose_windows_alternate_are_taken_by_whole_turns(decoder: Decoder) -> None:
    alternating = of_layers(decoder, 26, windows=(8, None))
    assert estimate_depths(alternating, adapted=decoder.linears) == (2, 6)
    assert estimate_depths(of_layers(decoder, 24, windows=(8,) * 5 + (None,)), adapted=decoder.linears) is None


def test_layers_that_differ_tell_nothing(decoder: Decoder) -> None:
    names = set(decoder.linears)
    assert estimate_depths(decoder, adapted=names) == (2, 3)
    assert estimate_depths(decoder, adapted=names - {min(names)}) is None


def test_each_layer_more_takes_what_those_between_two_passes_took() -> None:
    assert extrapolated_bytes(1000 + 2 * 70, 1000 + 6 * 70, share=30 / 4) == 1000 + 32 * 70
    # others have given back memory meanwhile
    assert extrapolated_bytes(900, 800, share=30 / 4) == 900


@pytest.mark.parametrize("kind", [GraphKind.SUMS, GraphKind.DROPPED_TERMS])
def test_a_pass_through_few_layers_tells_the_bytes_of_one_through_all(decoder: Decoder, kind: GraphKind) -> None:
    bank = AdapterBank(AdapterLayout(dict(decoder.linears)), num_slots=2, num_rank_rows=32)
    bank.insert(AdapterSpec(r=16, lora_alpha=16.0), AdapterState(weights=torch.zeros(16, bank.layout.width)))
    shape = PassShape(num_rows=256, num_sequences=4, length=64, num_trained=128)
    filler = CapturedPass(shape, decoder=decoder, bank=bank, slots=bank.slot_table(), kind=kind)

    def peak_bytes(num_layers: int) -> int:
        meter = StorageMeter()
        with meter, first_layers(decoder, num_layers):
            filler.launch()
        return meter.peak_bytes

    depths = estimate_depths(decoder, adapted=bank.layout.columns)
    assert depths is not None
    # what the first pass sets up is no pass's own
    peak_bytes(1)
    few, more = (peak_bytes(count) for count in depths)
    told = extrapolated_bytes(few, more, share=(len(decoder.layers) - depths[0]) / (depths[1] - depths[0]))
    assert told == pytest.approx(peak_bytes(len(decoder.layers)), rel=1e-3)
    assert told > 2 * more
