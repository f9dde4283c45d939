"""Merging: the sum in every adapted weight, whatever the checkpoint calls it, and nothing else beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.adapters.peft_files.merge import merge_into_base
from cohort.adapters.peft_files.peft_format import PeftAdapter
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError

MODULE = "model.layers.0.mlp.up_proj"


def _adapter() -> PeftAdapter:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 8, generator=generator), torch.randn(6, 2, generator=generator)
    tensors = {f"base_model.model.{MODULE}.lora_A.weight": a, f"base_model.model.{MODULE}.lora_B.weight": b}
    return PeftAdapter(spec=AdapterSpec(r=2, lora_alpha=4.0), tensors=tensors)


@pytest.mark.parametrize("name", [f"{MODULE}.weight", f"{MODULE.removeprefix('model.')}.weight"])
def test_the_sum_stands_under_the_checkpoints_own_name(tmp_path: Path, name: str) -> None:
    base, output = tmp_path / "base", tmp_path / "output"
    base.mkdir()
    output.mkdir()
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    save_file({name: weight, "norm.weight": torch.ones(8)}, base / "model.safetensors")
    save_file({"layers.0.w3": weight}, base / "consolidated.safetensors")
    (base / "config.json").write_text("{}")
    (base / "model.safetensors").chmod(0o444)
    adapter = _adapter()
    merge_into_base(base, adapter, output, shards=[base / "model.safetensors"])
    a, b = adapter.factors(MODULE, shape=(8, 6))
    # readable to whom the base is readable: a server may run as another user
    assert (output / "model.safetensors").stat().st_mode & 0o777 == 0o644
    merged = load_file(output / "model.safetensors")
    assert torch.equal(merged[name], weight + 2.0 * (b @ a))
    assert torch.equal(merged["norm.weight"], torch.ones(8))
    assert sorted(path.name for path in output.iterdir()) == ["config.json", "model.safetensors"]


def test_another_base_is_refused(tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.ones(4, 8)}, tmp_path / "model.safetensors")
    (tmp_path / "output").mkdir()
    with pytest.raises(InputError, match=f"no weight for {MODULE}"):
        merge_into_base(tmp_path, _adapter(), tmp_path / "output", shards=[tmp_path / "model.safetensors"])


@pytest.mark.parametrize("stored", [torch.uint8, torch.int8, torch.float8_e4m3fn])
def test_a_quantised_base_is_refused(tmp_path: Path, stored: torch.dtype) -> None:
    # nf4 packs two codes a byte, one below the other
    weight = torch.zeros(24, 1, dtype=stored) if stored is torch.uint8 else torch.zeros(6, 8).to(stored)
    save_file({f"{MODULE}.weight": weight, f"{MODULE}.weight.absmax": torch.ones(1)}, tmp_path / "model.safetensors")
    output = tmp_path / "output"
    output.mkdir()
    with pytest.raises(InputError, match=rf"{MODULE}.weight.*stored as {stored}.*Merge into the unquantised base"):
        merge_into_base(tmp_path, _adapter(), output, shards=[tmp_path / "model.safetensors"])
    assert list(output.iterdir()) == []
