"""Adapters whose blobs lie elsewhere are kept on the server's disk while their models are there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cohort.core.durable_files import atomic_directory
from cohort.service.served_models import ServedModels


class Blobs:
    """Knows which blobs have a row."""

    def __init__(self, kept: Collection[str]) -> None:
        self._kept = set(kept)

    def kept_of(self, names: Collection[str]) -> set[str]:
        return self._kept & set(names)


def served(cache: Path, *, kept: Collection[str] = ()) -> ServedModels:
    store: Any = SimpleNamespace(blobs=Blobs(kept))
    return ServedModels({}, store, cache=cache)


def test_copies_of_removed_models_leave_the_disk_and_others_stay(tmp_path: Path) -> None:
    for name in ("ab-one", "cd-two"):
        (tmp_path / name).mkdir()
    served(tmp_path, kept=["ab/one"]).forget("ft:model")
    assert [path.name for path in tmp_path.iterdir()] == ["ab-one"]


def test_an_adapter_that_is_being_fetched_stays_whole(tmp_path: Path) -> None:
    models = served(tmp_path)
    with atomic_directory(tmp_path / "ab-one") as partial:
        (partial / "adapter_config.json").write_text("{}")
        # a request for another model looks for what can go
        models.forget("ft:other")
        (partial / "adapter_model.safetensors").write_bytes(b"weights")
    assert {path.name for path in (tmp_path / "ab-one").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_nothing_is_removed_where_nothing_was_fetched(tmp_path: Path) -> None:
    served(tmp_path / "absent").forget("ft:model")
