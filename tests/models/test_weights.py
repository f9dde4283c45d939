"""Loading: single and sharded files, and every way in which files can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.core.errors import InputError, UnsupportedModelError
from cohort.models.weights import WeightDtype, load_decoder, load_tokenizer
from tests.models.streams import packed_logits
from tests.models.tiny_checkpoints import reference_logits, save_checkpoint


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def problems_of(folder: Path | str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_decoder(folder)
    return [str(problem) for problem in caught.value.problems]


def edit_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


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


def test_old_rotary_settings_are_read(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    settings = json.loads(path.read_text())
    settings.pop("rope_parameters")
    path.write_text(json.dumps({**settings, "rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 4.0}}))
    rotary = load_decoder(checkpoint).config.rotary
    assert rotary.rope_type == "linear"
    assert rotary.inverse_frequencies[:2] == pytest.approx((1 / 4, 77.0 ** (-1 / 3) / 4))


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


def test_stop_tokens_come_from_the_generation_settings(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_decoder(checkpoint).config.eos_token_ids == (5, 6)


def test_a_truncated_file_says_how_much_is_missing(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    size = file.stat().st_size
    with file.open("rb+") as stream:
        stream.truncate(size - 1000)
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors" in problem
    assert "truncated" in problem
    assert "did not finish" in problem


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 100, b"\x05\0\0\0\0\0\0\0[1,2]", b"<!doctype html><html>not found</html>"]
)
def test_a_damaged_file_is_named(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors" in problem
    assert "damaged" in problem


def test_a_header_that_contradicts_itself_is_named(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    start = header["model.norm.weight"]["data_offsets"][0]
    header["model.norm.weight"]["data_offsets"] = [start, start + 8]
    rewritten = json.dumps(header).encode()
    file.write_bytes(len(rewritten).to_bytes(8, "little") + rewritten + content[8 + length :])
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors" in problem
    assert "damaged" in problem
    header["model.norm.weight"]["data_offsets"] = ["a"]
    rewritten = json.dumps(header).encode()
    file.write_bytes(len(rewritten).to_bytes(8, "little") + rewritten + content[8 + length :])
    assert "damaged" in problems_of(checkpoint)[0]


def test_every_bad_tensor_is_listed_at_once(checkpoint: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(3, 24)
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(24)
        tensors["lm_head.weight"] = torch.zeros(67, 24, dtype=torch.int8)

    edit_tensors(checkpoint, spoil)
    problems = "\n".join(problems_of(checkpoint))
    assert "model.layers.1.mlp.up_proj.weight: found no such tensor" in problems
    assert "model.norm.weight: found no such tensor" in problems
    assert "k_proj.weight: found shape [3, 24]; allowed: shape [12, 24]" in problems
    assert "q_proj.bias: found a tensor that LlamaForCausalLM" in problems
    assert "lm_head.weight: found dtype I8" in problems
    assert len(problems_of(checkpoint)) == 5


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Llama", max_shard_size="12KB")
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-7])
    problems = problems_of(folder)
    assert len(problems) == 2
    assert first.name in problems[0]
    assert "no such file" in problems[0]
    assert second.name in problems[1]
    assert "truncated" in problems[1]


def test_a_broken_index_is_named(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text("{")
    (problem,) = problems_of(checkpoint)
    assert "model.safetensors.index.json" in problem


def test_no_weights_at_all(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (problem,) = problems_of(checkpoint)
    assert "no safetensors weights" in problem
    (checkpoint / "pytorch_model.bin").write_bytes(b"x")
    (problem,) = problems_of(checkpoint)
    assert "pytorch_model.bin" in problem
    assert "save_pretrained" in problem


def test_another_architecture_is_named_and_what_works_is_listed(checkpoint: Path) -> None:
    edit_config(checkpoint, model_type="gpt2", architectures=["GPT2LMHeadModel"])
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        load_decoder(checkpoint)
    edit_config(checkpoint, model_type="llama", architectures=["LlamaForSequenceClassification"])
    with pytest.raises(UnsupportedModelError, match="LlamaForSequenceClassification"):
        load_decoder(checkpoint)


def test_unsupported_settings_are_listed_at_once(checkpoint: Path) -> None:
    edit_config(
        checkpoint,
        hidden_act="relu2",
        attention_dropout=0.1,
        quantization_config={"quant_method": "gptq", "bits": 4},
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 2.0,
            "short_factor": [1.0] * 3,
            "long_factor": [2.0] * 3,
            "original_max_position_embeddings": 64,
        },
    )
    problems = problems_of(checkpoint)
    assert [problem.split(": found")[0].rsplit(" ", 1)[-1] for problem in problems] == [
        "hidden_act",
        "attention_dropout",
        "quantization_config",
        "rope_parameters.rope_type",
    ]


def test_a_broken_config_names_file_and_line(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "llama",\n "hidden_size": }')
    (problem,) = problems_of(checkpoint)
    assert "config.json:2" in problem
    (checkpoint / "config.json").unlink()
    (problem,) = problems_of(checkpoint)
    assert "config.json: found no such file" in problem


def test_sizes_that_contradict_each_other(checkpoint: Path) -> None:
    edit_config(checkpoint, num_key_value_heads=3)
    (problem,) = problems_of(checkpoint)
    assert "num_kv_heads" in problem
    edit_config(checkpoint, num_key_value_heads=2, hidden_size="wide")
    (problem,) = problems_of(checkpoint)
    assert "hidden_size" in problem


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c", "not a name"])
def test_a_path_that_is_not_there(name: str) -> None:
    (problem,) = problems_of(name)
    assert "no such directory" in problem


def test_a_hub_model_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (problem,) = problems_of("nobody/no-such-model")
    assert "nobody/no-such-model" in problem
    assert "the hub cannot be reached" in problem


def test_a_file_instead_of_a_directory(checkpoint: Path) -> None:
    (problem,) = problems_of(str(checkpoint / "model.safetensors"))
    assert "found a file" in problem


def test_a_model_without_a_tokenizer(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer that loads"):
        load_tokenizer(checkpoint)


def test_a_tokenizer_loads(repository: Path) -> None:
    folder = repository.parent / "shared" / "models" / "stories260K" / "hf"
    if not folder.is_dir():
        pytest.skip("the pretrained model stories260K is not on this machine")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer("Once upon a time")["input_ids"], skip_special_tokens=True) == "Once upon a time"
