"""Names stand for versions: new requests get the newest, those that hold an older one keep it."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.serving.adapter_registry import (
    AdapterHandle,
    AdapterRegistry,
    AdapterVersion,
    NameTakenError,
    UnknownAdapterError,
    require_finite,
)
from cohort.serving.ranks import AdapterToken, KeptAdapter

SPEC = AdapterSpec(r=2, lora_alpha=4)


def put(registry: AdapterRegistry, name: str) -> tuple[AdapterHandle, AdapterVersion | None]:
    kept = KeptAdapter(token=AdapterToken(0), spec=SPEC, rows_rD=torch.zeros(2, 3))
    return registry.put(name, spec=SPEC, kept=kept, path=None, digest=b"")


def test_a_replaced_version_is_retired_and_its_handle_goes_on() -> None:
    registry = AdapterRegistry(("base",))
    handle, replaced = put(registry, "a")
    assert replaced is None
    first = handle.version
    again, replaced = put(registry, "a")
    assert (again, replaced) == (handle, first)
    assert first.is_retired
    assert not handle.version.is_retired
    # no two versions share a key, not even of one name given twice
    registry.remove("a")
    keys = {first.key, handle.version.key, put(registry, "a")[0].version.key}
    assert len(keys) == 3


def test_names_are_taken_unknown_or_the_base_models() -> None:
    registry = AdapterRegistry(("base",))
    put(registry, "a")
    registry.require_free("a", replaces=True)
    registry.require_free("b", replaces=False)
    with pytest.raises(NameTakenError, match="load_inplace"):
        registry.require_free("a", replaces=False)
    with pytest.raises(NameTakenError, match="the base model"):
        registry.require_free("base", replaces=True)
    with pytest.raises(UnknownAdapterError, match="'b'; adapters: a"):
        registry.find("b")
    assert registry.remove("a").is_retired
    assert registry.names == ()
    with pytest.raises(UnknownAdapterError, match="none is loaded"):
        registry.remove("a")


def test_weights_of_a_diverged_adapter_are_refused() -> None:
    require_finite(torch.ones(2, 3), where="x")
    with pytest.raises(InputError, match="x: found weights that are not finite"):
        require_finite(torch.tensor([[1.0, float("inf")]]), where="x")
