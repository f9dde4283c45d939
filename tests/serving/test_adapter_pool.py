"""Adapters wait for slots, come back from disk, and end with the last request that uses them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    rank_rows_from_peft,
    read_adapter,
    serialised_weights,
)
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.core.errors import InputError
from cohort.models.weights import load_decoder
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from cohort.serving.adapter_registry import AdapterHandle, NameTakenError, UnknownAdapterError
from cohort.serving.engine import ServingEngine
from cohort.serving.scheduler import Admission
from cohort.serving.sequence import SequenceRequest
from tests.serving.served import Served, serve


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture
def pool(llama: Served) -> Iterator[AdapterPool]:
    settings = AdapterPoolSettings(max_loras=2, max_lora_rank=8, max_cpu_loras=2)
    pool = AdapterPool(llama.decoder, settings=settings, reserved_names=("base",))
    for index, path in enumerate(llama.adapters):
        pool.load(f"a{index}", path)
    yield pool
    pool.close()


def acquired(pool: AdapterPool, handle: AdapterHandle) -> Admission:
    """Acquire an adapter that may have to be read first."""
    for _ in range(200):
        admission = pool.acquire(handle)
        if admission is not None:
            return admission
        assert not pool.take_failures()
        pool.wait_changed(0.05)
    raise AssertionError("the adapter never arrived")


def where(pool: AdapterPool) -> dict[str, str]:
    return {status.name: status.residence for status in pool.statuses()}


def test_the_least_recently_used_leaves_its_slot_and_the_host(pool: AdapterPool) -> None:
    # two fit into host memory, and nothing is on the device yet
    assert where(pool) == {"a0": "disk", "a1": "host", "a2": "host"}
    handles = [pool.handle(f"a{index}") for index in range(3)]
    for handle in handles:
        pool.release(handle, acquired(pool, handle).version)
    assert where(pool)["a1"] == "device"
    assert where(pool)["a2"] == "device"
    # a0 was read again for its turn
    assert pool.num_loads == 3
    pool.release(handles[1], acquired(pool, handles[1]).version)
    pool.release(handles[0], acquired(pool, handles[0]).version)
    assert where(pool)["a2"] != "device"
    assert where(pool)["a1"] == "device"


def test_adapters_in_use_keep_their_slots(pool: AdapterPool) -> None:
    held = [(handle, acquired(pool, handle)) for handle in (pool.handle("a1"), pool.handle("a2"))]
    third = pool.handle("a0")
    while pool.acquire(third) is None and not pool.waits_for_slot(third):
        pool.wait_changed(0.05)
    assert pool.waits_for_slot(third)
    pool.release(held[0][0], held[0][1].version)
    assert acquired(pool, third).slot == held[0][1].slot
    assert not pool.waits_for_slot(third)


def test_the_weights_in_a_slot_are_those_of_the_file(pool: AdapterPool, llama: Served) -> None:
    admission = acquired(pool, pool.handle("a2"))
    assert admission.slot is not None
    stored = read_adapter(llama.adapters[2])
    rows = pool._bank.rank_rows(admission.slot)
    module = "model.layers.1.mlp.down_proj"
    part = pool._bank._parts[module]
    prefix = f"base_model.model.{module}"
    assert torch.equal(part.a_RK[rows], stored.tensors[f"{prefix}.lora_A.weight"])
    assert torch.equal(part.b_RN[rows].T, stored.tensors[f"{prefix}.lora_B.weight"])


def test_a_replaced_version_ends_with_its_last_user(pool: AdapterPool, llama: Served) -> None:
    handle = pool.handle("a2")
    old = acquired(pool, handle)
    status = pool.load("a2", llama.adapters[0], replaces=True)
    assert status.r == 4
    new = acquired(pool, handle)
    assert new.version != old.version
    assert new.slot != old.slot
    pool.release(handle, old.version)
    assert len(pool._residents) == 1
    pool.release(handle, new.version)
    assert where(pool)["a2"] == "device"


def test_what_was_unloaded_is_still_there_for_those_who_hold_it(pool: AdapterPool) -> None:
    handle = pool.handle("a1")
    pool.unload("a1")
    with pytest.raises(UnknownAdapterError, match="adapters: a0, a2"):
        pool.handle("a1")
    admission = acquired(pool, handle)
    pool.release(handle, admission.version)
    assert not pool._residents
    with pytest.raises(UnknownAdapterError):
        pool.unload("a1")


def test_names_are_given_once(pool: AdapterPool, llama: Served) -> None:
    with pytest.raises(NameTakenError, match="'a1' is loaded"):
        pool.load("a1", llama.adapters[0])
    with pytest.raises(NameTakenError, match="the name of the base model"):
        pool.load("base", llama.adapters[0], replaces=True)


def test_files_that_changed_meanwhile_are_not_served(pool: AdapterPool, llama: Served, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(llama.adapters[0], folder)
    pool.load("changing", folder)
    handle = pool.handle("changing")
    # both places in host memory go to others
    for index in (1, 2):
        pool.load(f"b{index}", llama.adapters[index])
    assert where(pool)["changing"] == "disk"
    shutil.copy(llama.adapters[1] / "adapter_model.safetensors", folder)
    shutil.copy(llama.adapters[1] / "adapter_config.json", folder)
    assert pool.acquire(handle) is None
    failures: list[tuple[object, str]] = []
    for _ in range(200):
        failures += pool.take_failures()
        if failures:
            break
        pool.wait_changed(0.05)
    assert failures[0][0] is handle
    assert "have changed since the adapter was loaded" in failures[0][1]


def test_weights_in_memory_are_published_and_checked(pool: AdapterPool, llama: Served) -> None:
    stored = read_adapter(llama.adapters[1])
    pool.publish("live", stored)
    assert acquired(pool, pool.handle("live")).slot is not None
    broken = {name: tensor * float("nan") for name, tensor in stored.tensors.items()}
    with pytest.raises(InputError, match="not finite"):
        pool.publish("live", replace(stored, tensors=broken))


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="max_loras must be at least 1"):
        AdapterPoolSettings(max_loras=0)


@pytest.mark.parametrize("rank", [1, 8, 16, 24])
def test_one_adapter_with_magnitudes_always_fits(llama: Served, rank: int) -> None:
    settings = AdapterPoolSettings(max_loras=1, max_lora_rank=rank, max_cpu_loras=1)
    bank = AdapterBank(AdapterLayout(llama.decoder.linears), num_slots=1, num_rank_rows=settings.num_rank_rows)
    assert bank.fits(AdapterSpec(r=rank, lora_alpha=1.0, use_dora=True))


def test_the_hint_names_the_largest_rank_of_a_pattern(pool: AdapterPool, llama: Served, tmp_path: Path) -> None:
    spec = AdapterSpec(r=4, lora_alpha=4, rank_pattern=(("down_proj", 9),))
    layout = AdapterLayout(llama.decoder.linears)
    (tmp_path / WEIGHTS_FILE).write_bytes(serialised_weights(layout, spec, torch.zeros(9, layout.width)))
    config = adapter_config(spec, base_model="base", target_modules=["down_proj"])
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"rank 9(.|\n)*--max-lora-rank 9 "):
        pool.load("wide", tmp_path)


def test_a_vera_adapter_is_served_as_the_lora_that_it_computes(
    pool: AdapterPool, llama: Served, tmp_path: Path
) -> None:
    layout = AdapterLayout({name: shape for name, shape in llama.decoder.linears.items() if "v_proj" in name})
    spec = AdapterSpec(r=6, lora_alpha=1.0, use_vera=VectorAdapter())
    vectors_1D = torch.randn(1, layout.width)
    (tmp_path / CONFIG_FILE).write_text(json.dumps(adapter_config(spec, base_model="b", target_modules=["v_proj"])))
    (tmp_path / WEIGHTS_FILE).write_bytes(serialised_weights(layout, spec, vectors_1D))
    pool.load("vera", tmp_path)
    handle = pool.handle("vera")
    assert acquired(pool, handle).slot is not None
    version = handle.version
    assert (version.spec.use_vera, version.spec.r, version.spec.scale) == (None, 6, 1.0)
    # what the bank of the training run reads
    trained = AdapterBank(layout, num_slots=1, num_rank_rows=32)
    trained.insert(spec, AdapterState(weights=vectors_1D))
    assert torch.equal(rank_rows_from_peft(layout, read_adapter(tmp_path)), trained.compute_RD[:6])


def test_a_tensor_that_is_not_understood_is_named_and_nothing_is_loaded(
    pool: AdapterPool, llama: Served, tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(llama.adapters[0], folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = torch.zeros(4, 96)
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(InputError, match=r"lora_embedding_A: found a tensor .* that is no LoRA factor"):
        pool.load("strange", folder)
    with pytest.raises(UnknownAdapterError):
        pool.handle("strange")


def test_a_device_out_of_memory_fails_the_one_that_is_loaded_and_no_other(
    pool: AdapterPool, llama: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ServingEngine(llama.decoder, adapters=pool, num_blocks=20)

    def answered(*names: str) -> dict[str, tuple[list[int | None], str | None]]:
        numbers = {
            engine.submit(
                SequenceRequest(prompt_tokens=[20, 21, 22], max_new_tokens=4, adapter=pool.handle(name))
            ): name
            for name in names
        }
        found: dict[str, tuple[list[int | None], str | None]] = {name: ([], None) for name in names}
        while engine.has_work:
            outputs = engine.step()
            for output in outputs:
                tokens, error = found[numbers[output.number]]
                found[numbers[output.number]] = ([*tokens, output.token], output.error or error)
            if not outputs:
                pool.wait_changed(0.02)
        return found

    alone = answered("a1")["a1"]
    insert = AdapterBank.insert

    def full(bank: AdapterBank, spec: AdapterSpec, state: AdapterState) -> int:
        if spec.r == 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return insert(bank, spec, state)

    with monkeypatch.context() as patched:
        patched.setattr(AdapterBank, "insert", full)
        found = answered("a2", "a1", "a2")
    assert found["a1"] == alone
    assert found["a2"][0] == [None, None]
    assert "adapter 'a2': the device ran out of memory" in str(found["a2"][1])
    assert engine.num_live == engine.blocks.num_used == 0
    # once there is room again it is served
    assert len(answered("a2")["a2"][0]) == 4


def test_rows_are_published_as_they_are(pool: AdapterPool, llama: Served) -> None:
    adapter = read_adapter(llama.adapters[1])
    rows = rank_rows_from_peft(pool._layout, adapter)
    pool.publish_rows("rows", adapter.spec, rows)
    # neither turned into tensors under PEFT's names nor copied
    assert pool.move_to_host("rows") is rows
    slots = [acquired(pool, pool.handle(name)).slot for name in ("a1", "rows")]
    assert None not in slots
    stored = [pool._bank.weights(slot, dtype=torch.float32) for slot in slots if slot is not None]
    assert torch.equal(*stored)
    with pytest.raises(InputError, match="rows: found weights that are not finite"):
        pool.publish_rows("rows", adapter.spec, torch.full_like(rows, torch.nan))
    with pytest.raises(InputError, match="found rank 9; allowed: a rank of at most 8"):
        pool.publish_rows("large", AdapterSpec(r=9, lora_alpha=9.0), rows)


@pytest.mark.gpu
def test_rows_on_the_device_enter_a_slot_there_and_come_back_from_the_host(llama: Served) -> None:
    decoder = load_decoder(llama.model, dtype="float32", device="cuda")
    pool = AdapterPool(decoder, settings=AdapterPoolSettings(max_loras=1, max_lora_rank=8))
    adapters = [read_adapter(path) for path in llama.adapters[:2]]
    rows = [rank_rows_from_peft(pool._layout, adapter).cuda() for adapter in adapters]
    for name, adapter, own in zip(("one", "two"), adapters, rows, strict=True):
        pool.publish_rows(name, adapter.spec, own)
    # at once: nothing has to arrive
    admission = pool.acquire(pool.handle("one"))
    assert admission is not None
    assert admission.slot is not None
    assert torch.equal(pool._bank.weights(admission.slot, dtype=torch.float32), rows[0])
    pool.release(pool.handle("one"), admission.version)
    assert torch.equal(pool.move_to_host("two").cuda(), rows[1])
    assert where(pool) == {"one": "device", "two": "host"}
    admission = acquired(pool, pool.handle("two"))
    assert admission.slot is not None
    assert torch.equal(pool._bank.weights(admission.slot, dtype=torch.float32), rows[1])
    pool.close()
