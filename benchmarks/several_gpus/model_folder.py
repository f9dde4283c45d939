"""A checkpoint of random weights that several parts share: 16 GB are written once."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.steps.several_gpus import write_checkpoint

__all__ = ["model_folder"]


@contextmanager
def model_folder(options: argparse.Namespace, config: Mapping[str, Any]) -> Iterator[Path]:
    """Give the folder of a checkpoint; it stays where ``options.models`` names a place, else it is removed."""
    kept: Path | None = getattr(options, "models", None)
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="several-gpus-") as made:
            write_checkpoint(Path(made), config)
            yield Path(made)
        return
    folder = kept / f"{config['hidden_size']}x{config['num_hidden_layers']}x{config['vocab_size']}"
    # the index is written last
    if not (folder / "model.safetensors.index.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_checkpoint(folder, config)
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == dict(config), "another model is there"
    yield folder
