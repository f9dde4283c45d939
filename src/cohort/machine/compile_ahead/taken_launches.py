"""Takes launches in place of Triton's compiler: each kernel is handed over once, and none is launched."""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["job_of", "taken_launches"]


class _NotLaunched:
    """Stands in Triton's memory for a kernel that was handed over: launching it does nothing.

    Without it Triton would name all arguments of each launch again, which takes longer than the rest of a launch.
    """

    function: Any = None
    packed_metadata: Any = None

    def launch_metadata(self, *_: object) -> None:
        """Return None."""

    def run(self, *_: object) -> None:
        """Do nothing."""


_NOT_LAUNCHED = _NotLaunched()


@contextlib.contextmanager
def taken_launches(hand_over: Callable[[bytes], None]) -> Iterator[None]:
    """Inside, the first launch of a kernel that is not loaded is passed to ``hand_over`` as a job, and not launched."""
    jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
    own, standing_in = jit._do_compile, list[tuple[dict[Any, Any], Any]]()

    def take(
        fn: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attrs: Any, *_: Any, **__: Any
    ) -> None:
        # what cannot be sent is compiled by the pass that needs it
        with contextlib.suppress(Exception):
            hand_over(job_of(fn, signature=signature, constants=constants, options=options, attrs=attrs))
        # a version that keeps its kernels elsewhere is asked at every launch
        with contextlib.suppress(Exception):
            loaded = fn.device_caches[device][0]
            if key not in loaded:
                loaded[key] = _NOT_LAUNCHED
                standing_in.append((loaded, key))

    jit._do_compile = take
    try:
        yield
    finally:
        jit._do_compile = own
        for loaded, key in standing_in:
            if loaded.get(key) is _NOT_LAUNCHED:
                del loaded[key]


def job_of(fn: Any, *, signature: Any, constants: Any, options: Any, attrs: Any) -> bytes:
    """Return a kernel with all that chooses its code, as a worker is told it.

    Raises:
        Exception: anything of it cannot be sent.
    """
    return pickle.dumps((fn.fn.__module__, fn.fn.__qualname__, signature, constants, vars(options), attrs))
