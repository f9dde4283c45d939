"""The number of CPU threads of a new run. It is part of the run's identity; a resumed run keeps it."""

from __future__ import annotations

import os

import torch

from cohort.core.errors import InputError
from cohort.models.config_file import read_config
from cohort.models.source import find_local_model

__all__ = ["settle_thread_count"]

# Up to this width a product is too small to share well: the quickstart takes 25 s with one thread and 20 s with two on
# two idle cores, but 2 to 20 times as long with two next to other programs, where the threads wait for each other.
NARROW_MODEL = 512
_CHOSEN_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def settle_thread_count(model_name_or_path: str, *, on_cpu: bool) -> None:
    """Let a small model on a CPU compute with one thread, unless the environment names a number.

    Nothing changes for a model that is not local or cannot be read: its problem is raised where it is loaded.
    """
    if not on_cpu or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    folder = find_local_model(model_name_or_path)
    if folder is None:
        return
    try:
        width = read_config(folder).hidden_size
    except InputError:
        return
    if width <= NARROW_MODEL:
        torch.set_num_threads(1)
