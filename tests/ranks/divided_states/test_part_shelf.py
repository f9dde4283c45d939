"""A rank's shelf: parts by key, on their way to the host in threads, and gone when they are forgotten."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from torch import Tensor

from cohort.ranks.divided_states.part_shelf import PartShelf


def test_parts_are_kept_under_their_names_and_forgotten() -> None:
    shelf, weights, moment = PartShelf(), torch.ones(4, 8), torch.zeros(4, 8, dtype=torch.bfloat16)
    kept = shelf.put(7, {"weights": weights, "m": moment}, step=3)
    assert (kept.num_bytes, kept.step, kept.are_on_gpu) == ({"weights": 128, "m": 64}, 3, False)
    assert kept.dtypes == {"weights": torch.float32, "m": torch.bfloat16}
    assert shelf.get((7, "weights")) is weights
    shelf.forget([(7, "weights"), (7, "weights"), (8, "weights")])
    assert len(shelf) == 1
    with pytest.raises(KeyError):
        shelf.get((7, "weights"))


def test_copies_on_the_host_keep_what_was_there() -> None:
    shelf, rows = PartShelf(), {"weights": torch.ones(4, 8), "m": torch.zeros(4, 8)}
    kept = shelf.put_on_host(2, rows, step=1)
    assert (kept.num_bytes, kept.are_on_gpu) == ({"weights": 128, "m": 128}, False)
    rows["weights"].zero_()
    assert torch.equal(shelf.get((2, "weights")), torch.ones(4, 8))


def test_parts_on_the_host_have_left() -> None:
    shelf = PartShelf()
    shelf.put(0, {"weights": torch.ones(2)}, step=1)
    shelf.begin_leaving([(0, "weights")])
    assert shelf.have_left([(0, "weights")])


def test_a_part_on_its_way_is_read_where_it_was_and_has_left_when_its_copy_is_there() -> None:
    shelf, key, there, here = PartShelf(), (0, "weights"), torch.ones(2), torch.ones(2)
    shelf.put(0, {"weights": there}, step=1)
    copy = Future[dict[str, Tensor]]()
    shelf._coming[key] = copy
    assert not shelf.have_left([key])
    assert shelf.get(key) is there
    copy.set_result({"part": here})
    assert shelf.have_left([key])
    assert shelf.get(key) is here
    shelf._coming[key] = copy
    shelf.forget([key])
    assert not shelf._coming


@pytest.mark.gpu
def test_a_part_leaves_its_gpu_with_its_bits() -> None:
    shelf, part, key = PartShelf(), torch.randn(64, 1024, device="cuda"), (0, "weights")
    assert shelf.put(0, {"weights": part}, step=1).are_on_gpu
    shelf.begin_leaving([key])
    shelf.wait_until_left([key])
    assert not shelf.get(key).is_cuda
    assert torch.equal(shelf.get(key), part.cpu())
