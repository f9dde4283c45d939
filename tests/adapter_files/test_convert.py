"""An adapter's files as another kind: the same function, its card says so, and what cannot be made is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.adapter_files import convert
from cohort.adapter_files.base_model import RunBase
from cohort.adapter_files.convert import BlockTarget, write_as_blocks, write_as_lora
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import read_adapter, serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.machine.machine import Machine
from cohort.memory.host_streaming import StreamedLayers, layers_for_generation
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from tests.adapter_files.runs import base_of
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import write_inputs

SPEC = AdapterSpec(r=4, lora_alpha=8.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RunBase:
    return base_of(write_inputs(tmp_path_factory.mktemp("convert")))


def save(base: RunBase, folder: Path, *, poison: bool = False) -> Path:
    known = linear_shapes(check_checkpoint(base.directory))
    layout = AdapterLayout({name: shape for name, shape in known.items() if name.endswith(("q_proj", "o_proj"))})
    weights_rD = torch.randn(SPEC.num_rows, layout.width, generator=torch.Generator().manual_seed(0))
    if poison:
        weights_rD[0, 0] = torch.nan
    folder.mkdir()
    config = adapter_config(SPEC, base_model=base.name, target_modules=["q_proj", "o_proj"])
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(serialised_weights(layout, SPEC, weights_rD))
    (folder / "README.md").write_text("# Adapter\n")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def change(base: RunBase, folder: Path) -> dict[str, Tensor]:
    """Return scale * B A of each linear."""
    adapter, known = read_adapter(folder), linear_shapes(check_checkpoint(base.directory))
    factors = {name: adapter.factors(name, shape=known[name]) for name in adapter.modules}
    return {name: adapter.spec.scale * b @ a for name, (a, b) in factors.items()}


def test_enough_blocks_of_rank_and_back_are_the_same_function(base: RunBase, tmp_path: Path) -> None:
    source, blocks, plain = save(base, tmp_path / "source"), tmp_path / "blocks", tmp_path / "plain"
    # two blocks of twice the rank hold any adapter
    note = write_as_blocks(source, blocks, base=base, asked=BlockTarget(nblocks=2, rank=8), learning_rate=1e-3)
    assert note == "BD-LoRA of 2 blocks and rank 8: the same function"
    assert read_adapter(blocks).spec.use_bdlora is not None
    back = write_as_lora(blocks, plain, base=base)
    assert back == "LoRA of rank 8: the same function, with zeros between blocks"
    assert read_adapter(plain).spec.use_bdlora is None
    expected = change(base, source)
    for folder in (blocks, plain):
        for name, found in change(base, folder).items():
            # an SVD in float32 and back
            torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=1e-4)
    card = (plain / "README.md").read_text()
    assert card.startswith("# Adapter")
    assert "Written as LoRA: the same function, with zeros between blocks. Its rank is 8" in card
    assert (plain / "tokenizer.json").is_file()


def test_fewer_ranks_say_what_is_lost(base: RunBase, tmp_path: Path) -> None:
    source = save(base, tmp_path / "source")
    asked = BlockTarget(nblocks=2, rank=4, is_swapped=True)
    note = write_as_blocks(source, tmp_path / "blocks", base=base, asked=asked, learning_rate=1e-3)
    assert note.startswith("BD-LoRA of 2 blocks and rank 4: ")
    assert "% of the adapter's change is lost" in note


@pytest.mark.parametrize(
    ("nblocks", "rank", "message"),
    [(2, 16, r"--rank: found 16; allowed: at most 8"), (7, 7, r"--nblocks"), (2, 5, r"--rank")],
)
def test_blocks_that_fit_nothing_are_refused(
    base: RunBase, tmp_path: Path, nblocks: int, rank: int, message: str
) -> None:
    source, target = save(base, tmp_path / "source"), tmp_path / "blocks"
    with pytest.raises(InputError, match=message):
        write_as_blocks(source, target, base=base, asked=BlockTarget(nblocks=nblocks, rank=rank), learning_rate=1e-3)
    assert not target.exists()


def test_weights_that_are_not_finite_leave_no_folder(base: RunBase, tmp_path: Path) -> None:
    source, target = save(base, tmp_path / "source", poison=True), tmp_path / "plain"
    with pytest.raises(InputError, match="not finite after the conversion"):
        write_as_lora(source, target, base=base)
    assert not target.exists()


def test_a_model_that_streams_its_layers_is_converted_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_inputs(tmp_path / "inputs")
    write_tiny_model(folder / "model", num_layers=3)
    base = base_of(folder)
    source = save(base, tmp_path / "source")
    asked = BlockTarget(nblocks=2, rank=4, whiten_rows=4, distill_steps=2)
    notes = [write_as_blocks(source, tmp_path / "resident", base=base, asked=asked, learning_rate=1e-2)]
    counts = []

    def streamed(config: DecoderConfig, machine: Machine) -> StreamedLayers:
        counts.append(config.num_layers)
        return replace(layers_for_generation(config, machine), count=config.num_layers)

    monkeypatch.setattr(convert, "layers_for_generation", streamed)
    notes.append(write_as_blocks(source, tmp_path / "streamed", base=base, asked=asked, learning_rate=1e-2))
    assert counts == [3]
    assert notes[0] == notes[1]
    files = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("resident", "streamed")]
    assert files[0] == files[1]
