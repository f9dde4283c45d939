"""Loading: single and sharded files, of every precision."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cohort.core.errors import InputError
from cohort.models.weights import LoadStoppedError, WeightDtype, load_decoder
from tests.models.fixtures.streams import packed_logits
from tests.models.fixtures.tiny_checkpoints import edit_tensors, reference_logits, save_checkpoint


def test_shards_load_as_one_file_does(tmp_path: Path) -> None:
    single = save_checkpoint(tmp_path / "single", "Qwen2", seed=3)
    sharded = save_checkpoint(tmp_path / "sharded", "Qwen2", seed=3, max_shard_size="12KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    sequence = [torch.arange(20)]
    assert torch.equal(
        packed_logits(load_decoder(single), sequence)[0], packed_logits(load_decoder(sharded), sequence)[0]
    )


def test_a_checkpoint_of_the_bare_decoder_loads(checkpoint: Path) -> None:
    reference = reference_logits(checkpoint, [torch.arange(20)])[0]

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for key in list(tensors):
            tensors[key.removeprefix("model.")] = tensors.pop(key)

    edit_tensors(checkpoint, strip)
    torch.testing.assert_close(
        packed_logits(load_decoder(checkpoint), [torch.arange(20)])[0], reference, rtol=0, atol=1e-4
    )


def test_a_load_that_is_stopped_ends_at_the_next_tensor(checkpoint: Path) -> None:
    stop = threading.Event()
    assert load_decoder(checkpoint, stop=stop) is not None
    stop.set()
    with pytest.raises(LoadStoppedError):
        load_decoder(checkpoint, stop=stop)


@pytest.mark.parametrize(
    ("text", "expected"), [("bf16", torch.bfloat16), ("float32", torch.float32), ("auto", torch.float32)]
)
def test_dtypes(checkpoint: Path, text: str, expected: torch.dtype) -> None:
    decoder = load_decoder(checkpoint, dtype=text)
    assert decoder.dtype == expected
    assert decoder.head.dtype == expected
    assert decoder.num_bytes == sum(
        tensor.numel() * expected.itemsize for tensor in load_file(checkpoint / "model.safetensors").values()
    )


def test_auto_is_bfloat16_on_a_gpu() -> None:
    assert WeightDtype.AUTO.on(torch.device("cuda")) == torch.bfloat16


def test_an_unknown_dtype_lists_the_known_ones(checkpoint: Path) -> None:
    with pytest.raises(InputError, match=r"'int8'; allowed: auto, bfloat16, float32, float64"):
        load_decoder(checkpoint, dtype="int8")


def test_half_precision_files_compute_in_float32(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({k: t.to(torch.float16) for k, t in tensors.items()}))
    reference = reference_logits(checkpoint, [torch.arange(20)])[0]
    torch.testing.assert_close(
        packed_logits(load_decoder(checkpoint), [torch.arange(20)])[0], reference, rtol=0, atol=1e-4
    )
