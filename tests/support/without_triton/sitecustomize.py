"""Python processes that find this folder first use no Triton kernels.

For tests of what passes between processes: each would compile its kernels again, which takes a minute on some machines.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar

with contextlib.suppress(ImportError):
    from cohort.kernels import backend

    backend._forced_backend = ContextVar("forced_backend", default=backend.Backend.REFERENCE)
