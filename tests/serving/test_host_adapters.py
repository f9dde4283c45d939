"""Which adapters stay in host memory, and what is read again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.serving.adapter_registry import AdapterRegistry, AdapterVersion, load_version
from cohort.serving.host_adapters import HostAdapters
from cohort.serving.ranks import OneProcess
from tests.serving.served import Served, serve

CHANGED = threading.Event()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture
def host(llama: Served) -> Iterator[HostAdapters]:
    host = HostAdapters(
        layout=AdapterLayout(llama.decoder.linears),
        most_adapters=1,
        most_rank=8,
        ranks=OneProcess(),
        dtype=torch.float32,
        is_pinned=False,
        lock=threading.RLock(),
        changed=CHANGED,
    )
    yield host
    host.close()


def put(host: HostAdapters, registry: AdapterRegistry, llama: Served, path: Path) -> AdapterVersion:
    spec, rows_rD, digest = load_version(path, layout=AdapterLayout(llama.decoder.linears), most_rank=8)
    handle, _ = registry.put(path.name, spec=spec, kept=host.kept(spec, rows_rD), path=path, digest=digest)
    return handle.version


def rows_of(version: AdapterVersion) -> torch.Tensor | None:
    return None if version.kept is None else version.kept.rows_rD


def test_the_one_used_last_stays_and_the_other_is_read_again(host: HostAdapters, llama: Served) -> None:
    registry = AdapterRegistry(())
    first, second = (put(host, registry, llama, path) for path in llama.adapters[:2])
    before = rows_of(first)
    host.keep(first)
    host.keep(second)
    assert rows_of(first) is None
    CHANGED.clear()
    host.read_again(registry.find(llama.adapters[0].name), first, arriving=())
    assert CHANGED.wait(60)
    assert host.take_failures() == []
    again = rows_of(first)
    assert before is not None
    assert again is not None
    assert torch.equal(again, before)


def test_weights_on_their_way_to_the_device_are_not_dropped(host: HostAdapters, llama: Served) -> None:
    registry = AdapterRegistry(())
    first, second = (put(host, registry, llama, path) for path in llama.adapters[:2])
    host.keep(first)
    host.keep(second, arriving={first.key})
    assert rows_of(first) is not None
