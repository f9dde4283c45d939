"""Threads that copy while another one launches: each uses one core.

torch shares an operation on many numbers among as many threads as there are cores, which then wait for the next one
without giving their cores away. Four threads that copy states would so take every core, also that of the thread that
launches what a GPU is to do next. Only for what has the same bits with any number of threads: copies and casts.
"""

from __future__ import annotations

import ctypes

import torch

__all__ = ["use_one_thread"]


def use_one_thread() -> bool:
    """Let operations of the thread that calls this use no other; return whether its OpenMP can be told so.

    ``torch.set_num_threads`` would tell threads that start later as well.
    """
    # torch takes over the process's number at a thread's first question, and not after that
    torch.get_num_threads()
    try:
        ctypes.CDLL(None).omp_set_num_threads(1)
    except (AttributeError, OSError, TypeError):
        return False
    return torch.get_num_threads() == 1
