"""What the BLAS of this machine answered before: kept on disk, as asking it makes a GPU wait for each new size.

An answer follows from the shapes, the GPU, the libraries and our own kernel; each of these is in the name of the file,
so that with another one everything is asked again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import re
from pathlib import Path

import torch
import triton

from cohort.core.cache_directory import default_cache_directory
from cohort.kernels import packed_linear
from cohort.kernels.exact_product import agreed_shapes

__all__ = ["KeptAnswers", "kept_answers"]

_FOLDER = "blas_answers"
# of the environment: what tells a BLAS which of its kernels to take
_SETTINGS = re.compile(r"CUBLAS|TORCH_BLAS|TORCH_CUBLAS|NVIDIA_TF32")
_MATMUL_SETTINGS = (
    *("allow_bf16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction_split_k"),
    *("allow_fp16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction_split_k"),
    "allow_fp16_accumulation",
)
_MAPS = Path("/proc/self/maps")


class KeptAnswers:
    """Answers by the shape and direction of a product, a line each: several processes may add to them.

    Attributes:
        loaded: Products whose kernels this process has loaded.
    """

    def __init__(self, path: Path | None) -> None:
        """Read what ``path`` holds; a line that is damaged is as if it had never been asked. None: keep no file."""
        self._path = path
        self._answers: dict[str, bool] = {}
        self.loaded: set[str] = set()
        if path is None:
            return
        with contextlib.suppress(OSError):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    found = json.loads(line)
                    if isinstance(found["key"], str) and isinstance(found["agrees"], bool):
                        self._answers[found["key"]] = found["agrees"]

    def get(self, key: str) -> bool | None:
        return self._answers.get(key)

    def add(self, key: str, *, agrees: bool) -> None:
        """Keep an answer; a cache that cannot be written only costs time."""
        self._answers[key] = agrees
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # behind a line that another process was killed in
                file.write("\n" + json.dumps({"key": key, "agrees": agrees}) + "\n")


def kept_answers(device: torch.device) -> KeptAnswers:
    """Return the answers of the BLAS of this process's libraries on a GPU, as torch is set to use it now."""
    matmul = torch.backends.cuda.matmul
    # a version of torch may lack some
    settings = [getattr(matmul, name, None) for name in _MATMUL_SETTINGS]
    return _answers_with(device, *settings, str(torch.backends.cuda.preferred_blas_library()))


@functools.cache
def _answers_with(device: torch.device, *settings: object) -> KeptAnswers:
    libraries, sources = _libraries(), _own_sources()
    if libraries is None or sources is None:
        # what an answer follows from is not known: it holds for this process
        return KeptAnswers(None)
    facts = [_facts_of(device), list(settings), libraries, sources]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return KeptAnswers(default_cache_directory() / _FOLDER / f"{name}.jsonl")


def _facts_of(device: torch.device) -> list[object]:
    """Return what else decides which kernel the BLAS takes, and how ours is compiled."""
    properties = torch.cuda.get_device_properties(device)
    return [
        properties.name,
        (properties.major, properties.minor, properties.multi_processor_count),
        (torch.__version__, torch.version.git_version, torch.version.cuda, triton.__version__),
        sorted((key, value) for key, value in os.environ.items() if _SETTINGS.match(key)),
    ]


def _libraries() -> list[tuple[str, int, int]] | None:
    """Return the BLAS libraries that this process has loaded: path, size and time of change.

    None where the system does not tell, or one was replaced since.
    """
    try:
        paths = {line.split(maxsplit=5)[5] for line in _MAPS.read_text().splitlines() if "libcublas" in line}
        states = [(path, Path(path).stat()) for path in sorted(paths)]
    except OSError:
        return None
    # a torch that has a BLAS inside of it is named by its version
    return [(path, status.st_size, status.st_mtime_ns) for path, status in states]


@functools.cache
def _own_sources() -> str | None:
    """Return a digest of the kernels whose bits are asked for, and of the tiles they choose; None without files."""
    # first what a launch imports: a process that goes on while its package is replaced runs what is digested here
    for name in ("hopper.product", "hopper.term"):
        importlib.import_module(f"{packed_linear.__name__}.{name}")
    folders = [Path(agreed_shapes.__file__).parent, *(Path(path) / "hopper" for path in packed_linear.__path__)]
    digest = hashlib.sha256()
    try:
        for path in sorted(path for folder in folders for path in folder.glob("*.py")):
            digest.update(path.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()
