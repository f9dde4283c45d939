"""Stands in for Triton's compiler while kernels are collected, and while workers compile them."""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Callable, Hashable, Iterator
from typing import Any

__all__ = ["awaited_launches", "taken_launches"]


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
def taken_launches(hand_over: Callable[[Hashable, bytes], None]) -> Iterator[None]:
    """Inside, the first launch of a kernel that is not loaded is handed over, and none is launched.

    Args:
        hand_over: Takes what launches know a kernel by, and all that a worker needs to compile it.
    """
    standing_in = list[tuple[dict[Any, Any], Any]]()

    def take(
        fn: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attrs: Any, *_: Any, **__: Any
    ) -> None:
        job = None
        # what cannot be sent is compiled by the pass that needs it
        with contextlib.suppress(Exception):
            job = pickle.dumps((fn.fn.__module__, fn.fn.__qualname__, signature, constants, vars(options), attrs))
        if job is not None:
            hand_over(_known_by(fn, key), job)
        # a version that keeps its kernels elsewhere is asked at every launch
        with contextlib.suppress(Exception):
            loaded = fn.device_caches[device][0]
            if key not in loaded:
                loaded[key] = _NOT_LAUNCHED
                standing_in.append((loaded, key))

    with _compiling(lambda _: take):
        try:
            yield
        finally:
            for loaded, key in standing_in:
                if loaded.get(key) is _NOT_LAUNCHED:
                    del loaded[key]


@contextlib.contextmanager
def awaited_launches(wait_for: Callable[[Hashable], None]) -> Iterator[None]:
    """Inside, the first launch of a kernel waits for that kernel; then Triton compiles it, or finds it on disk.

    Args:
        wait_for: Takes what :func:`taken_launches` has handed over, or what it has never seen, from any thread.
    """

    def awaiting(own: Callable[..., Any]) -> Callable[..., Any]:
        def compile_awaited(fn: Any, key: Any, *arguments: Any, **named: Any) -> Any:
            # whatever is wrong, Triton compiles it
            with contextlib.suppress(Exception):
                wait_for(_known_by(fn, key))
            return own(fn, key, *arguments, **named)

        return compile_awaited

    with _compiling(awaiting):
        yield


def _known_by(fn: Any, key: Any) -> Hashable:
    return (fn.fn.__module__, fn.fn.__qualname__, key)


@contextlib.contextmanager
def _compiling(stand_in: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Put something in the place of what Triton does for a kernel that is not loaded."""
    jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
    own = jit._do_compile
    jit._do_compile = stand_in(own)
    try:
        yield
    finally:
        jit._do_compile = own
