"""How many threads a new run takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cohort.machine.thread_count import settle_thread_count
from tests.training.small_models import save_llama


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_small_model_on_a_cpu_takes_one_thread(tmp_path: Path) -> None:
    save_llama(tmp_path)
    settle_thread_count(str(tmp_path), on_cpu=False)
    assert torch.get_num_threads() == 2
    settle_thread_count(str(tmp_path), on_cpu=True)
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("two_threads")
def test_the_environment_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llama(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    settle_thread_count(str(tmp_path), on_cpu=True)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["org/model", "no/such/folder/at/all", "."])
def test_what_cannot_be_read_is_left_to_the_loader(name: str) -> None:
    settle_thread_count(name, on_cpu=True)
    assert torch.get_num_threads() == 2
