"""Small groups of quantised weights to write behind a load; programs of the tests start without transformers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.checkpoint.quantised_files import QuantisedFiles
from cohort.models.checkpoint.writing_behind import write_behind
from cohort.models.checkpoint_layout import FusedTensor, Piece
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weight_formats.weight_format import StoredTensors

CPU = torch.device("cpu")
GROUPS = ("layers.0.down", "layers.1.down")


class Product:
    """Codes of one piece, as a format's products keep them."""

    def __init__(self, size: int = 4) -> None:
        self.codes = torch.arange(size, dtype=torch.int64)


def parts_of(product: FrozenProduct, rows: Sequence[int]) -> list[StoredTensors]:
    assert isinstance(product, Product)
    return [{"codes": product.codes} for _ in rows]


def layout() -> list[FusedTensor]:
    return [FusedTensor(name=f"{group}.weight", pieces=(Piece(key=group, shape=(1, 4)),)) for group in GROUPS]


def lacking(folder: Path, groups: Sequence[str] = GROUPS) -> QuantisedFiles:
    """Return files of which ``groups`` were looked for and are absent."""
    folder.mkdir(exist_ok=True)
    # it would be another state of the checkpoint's files
    if not (folder / "checkpoint").exists():
        (folder / "checkpoint").touch()
    files = QuantisedFiles(folder, files=[folder / "checkpoint"], weight_format=WEIGHT_FORMATS["int8"])
    for group in groups:
        assert files.begin_reading(group, [group], device=CPU) is None
    return files


def begin(files: QuantisedFiles, products: dict[str, Any]) -> Future[None]:
    begun = write_behind(files, layout(), products, disassemble=parts_of, device=CPU)
    assert begun is not None
    return begun
