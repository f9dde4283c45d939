"""Adapters that must not be loaded, with the reason; and what may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, WEIGHTS_FILE, serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.core.errors import InputError
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.service.adapter_routes import path_below
from tests.cli.tiny_task import write_tiny_model
from tests.service.running_server import RunningServer, write_adapter


def refused(server: RunningServer, status: int, **body: Any) -> str:
    response = server.post("/v1/load_lora_adapter", body)
    assert response.status_code == status, response.text
    return str(response.json()["error"]["message"])


@pytest.fixture
def broken(model: Path) -> Path:
    (model.parent / "broken" / "README.md").unlink(missing_ok=True)
    return write_adapter(model, model.parent / "broken", r=4, seed=5)


def test_another_shape_names_the_tensor_and_what_was_expected(server: RunningServer, broken: Path) -> None:
    file = broken / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"
    tensors[name] = torch.zeros(15, 4)
    save_file(tensors, file)
    message = refused(server, 400, lora_name="broken", lora_path="broken")
    assert "model.layers.1.self_attn.k_proj" in message
    assert "found shape (15, 4); allowed: shape (16, 4)" in message


def test_blocks_that_do_not_fit_name_the_tensor(server: RunningServer, model: Path) -> None:
    layout = AdapterLayout(linear_shapes(read_config(model)))
    folder = model.parent / "in_blocks"
    folder.mkdir(exist_ok=True)
    of_two, of_four = (AdapterSpec(r=4, lora_alpha=4, use_bdlora=BlockDiagonal(nblocks=n)) for n in (2, 4))
    (folder / WEIGHTS_FILE).write_bytes(serialised_weights(layout, of_two, torch.zeros(4, layout.width)))
    config = adapter_config(of_four, base_model=str(model), target_modules=["q_proj"])
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    message = refused(server, 400, lora_name="in_blocks", lora_path="in_blocks")
    # two blocks of rank 2 where four of rank 1 are named
    assert "model.layers.0.self_attn.q_proj.lora_B.weight" in message
    assert "found shape (32, 2)" in message
    assert "(32, 1)" in message


def test_weights_that_are_not_finite_are_refused(server: RunningServer, broken: Path) -> None:
    file = broken / "adapter_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, file)
    assert "not finite" in refused(server, 400, lora_name="broken", lora_path="broken")


def test_an_adapter_of_a_deeper_model_names_its_layers(server: RunningServer, model: Path) -> None:
    deeper = write_tiny_model(model.parent / "deeper", num_layers=3)
    write_adapter(deeper, model.parent / "of_deeper", r=4, seed=1)
    message = refused(server, 400, lora_name="deeper", lora_path="of_deeper")
    assert "model.layers.2." in message
    assert "that is no LoRA factor of a linear of this model" in message


def test_an_adapter_of_other_weights_is_known_by_its_card(server: RunningServer, broken: Path) -> None:
    (broken / "README.md").write_text(f"| fact | value |\n|---|---|\n| model hash | {'ab' * 32} |\n")
    assert "another base model (SHA-256 abababababab)" in refused(server, 412, lora_name="b", lora_path="broken")


def test_a_rank_above_the_limit(server: RunningServer, model: Path) -> None:
    write_adapter(model, model.parent / "wide", r=17, seed=1)
    assert "--max-lora-rank 17" in refused(server, 400, lora_name="wide", lora_path="wide")


@pytest.mark.parametrize(
    "path",
    ["..", "/etc", "../outside", "adapters/../../x", "nul\u0000", "link", "x" * 5000],
    ids=["up", "absolute", "up and down", "winding", "nul", "link", "long"],
)
def test_paths_outside_the_root_are_refused(server: RunningServer, model: Path, path: str) -> None:
    link = model.parent / "link"
    if not link.exists():
        link.symlink_to("/etc")
    message = refused(server, 403, lora_name="outside", lora_path=path)
    assert "a path below" in message
    assert "outside" not in [status.name for status in server.opened.model.pool.statuses()]


def test_missing_and_damaged_files(server: RunningServer, broken: Path) -> None:
    assert "no such file" in refused(server, 400, lora_name="n", lora_path="nothing_here")
    (broken / "adapter_model.safetensors").write_bytes(b"junk")
    assert "damaged" in refused(server, 400, lora_name="n", lora_path="broken")
    config = broken / "adapter_config.json"
    kept = config.read_text()
    for text in ("[]", "{}", '{"peft_type": "LORA", "r": "x", "lora_alpha": 1}'):
        config.write_text(text)
        assert server.post("/v1/load_lora_adapter", {"lora_name": "n", "lora_path": "broken"}).status_code == 400
    config.write_text(kept)
    config.write_text(json.dumps({**json.loads(config.read_text()), "use_dora": True}))
    assert server.post("/v1/load_lora_adapter", {"lora_name": "n", "lora_path": "broken"}).status_code == 400


@pytest.mark.parametrize("name", ["a0", "base"])
def test_a_name_that_is_taken(server: RunningServer, name: str) -> None:
    assert "choose another name" in refused(server, 409, lora_name=name, lora_path="adapters/a1")


def test_the_base_model_is_never_replaced(server: RunningServer) -> None:
    refused(server, 409, lora_name="base", lora_path="adapters/a1", load_inplace=True)


def test_unknown_adapters_cannot_be_unloaded(server: RunningServer) -> None:
    assert server.post("/v1/unload_lora_adapter", {"lora_name": "nobody"}).status_code == 404


def test_paths_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert path_below(tmp_path, "a/../a") == tmp_path.resolve() / "a"
    assert path_below(tmp_path, str(tmp_path / "a")) == tmp_path.resolve() / "a"
    with pytest.raises(InputError):
        path_below(tmp_path / "a", str(tmp_path))
