"""Which weights of a checkpoint are no finite numbers; read only when a model's outputs are none."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from cohort.models.checkpoint.safetensors_files import read_headers

__all__ = ["non_finite_weights"]


def non_finite_weights(folder: Path) -> list[str]:
    """Return the names of the tensors of ``folder`` with a NaN or an infinity, in the order of their files."""
    found = []
    for file in dict.fromkeys(tensor.file for tensor in read_headers(folder).tensors.values()):
        # one tensor at a time: the whole model may not fit into memory twice
        with safe_open(file, framework="pt") as weights:
            names = weights.keys()
            found += [name for name in names if not weights.get_tensor(name).float().isfinite().all()]
    return found
