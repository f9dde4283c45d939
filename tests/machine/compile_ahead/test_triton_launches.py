"""Launches that are handed over in place of being compiled, and what Triton finds in its memory meanwhile."""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.machine.compile_ahead.triton_launches import awaited_launches, taken_launches

pytest.importorskip("triton")


def kernel() -> None:
    """Stand in for one that Triton was given."""


def launch(fn: Any, key: str, *, constants: object = None) -> Any:
    """Launch as Triton does: what is in its memory, or what it is told to compile."""
    jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
    options = SimpleNamespace(num_warps=4)
    found = fn.device_caches[0][0].get(key) if hasattr(fn, "device_caches") else None
    if found is None:
        return jit._do_compile(fn, key, {"x": "i32"}, 0, constants, options, {}, False)
    assert found.launch_metadata((1,), 0, 7) is None
    assert found.run(1, 1, 1, 0, found.function, found.packed_metadata, None, None, None, 7) is None
    return found


def test_a_kernel_is_handed_over_once_and_forgotten_at_the_end() -> None:
    jobs, loaded = list[bytes](), dict[str, Any]()
    known = list[Hashable]()

    def hand_over(kernel: Hashable, job: bytes) -> None:
        known.append(kernel)
        jobs.append(job)

    own = importlib.import_module("triton.runtime.jit").JITFunction._do_compile
    fn = SimpleNamespace(fn=kernel, device_caches={0: (loaded, {})})
    with contextlib.suppress(MemoryError), taken_launches(hand_over):
        assert launch(fn, "first") is None
        assert launch(fn, "first") is loaded["first"]
        assert launch(fn, "second") is None
        # another thread may have loaded it
        loaded["second"] = "compiled"
        raise MemoryError
    assert [pickle.loads(job)[1:3] for job in jobs] == [("kernel", {"x": "i32"})] * 2
    assert known == [(__name__, "kernel", key) for key in ("first", "second")]
    assert loaded == {"second": "compiled"}
    assert importlib.import_module("triton.runtime.jit").JITFunction._do_compile is own


def test_what_cannot_be_sent_and_what_is_kept_elsewhere_is_not_launched_either() -> None:
    jobs = list[bytes]()
    fn: Any = SimpleNamespace(fn=kernel)
    with taken_launches(lambda _, job: jobs.append(job)):
        assert launch(fn, "kept elsewhere") is None
        assert launch(fn, "kept elsewhere") is None
        assert launch(fn, "cannot be sent", constants=lambda: None) is None
    assert len(jobs) == 2


def test_a_launch_waits_for_its_kernel_and_then_leaves_the_rest_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
    done = list[object]()

    def compile_kernel(_: Any, key: str, *arguments: Any) -> str:
        done.append(("compiled", key, len(arguments)))
        return f"kernel {key}"

    monkeypatch.setattr(jit, "_do_compile", compile_kernel)

    def wait_for(kernel: Hashable) -> None:
        done.append(kernel)
        if kernel == (__name__, "kernel", "second"):
            raise MemoryError

    fn: Any = SimpleNamespace(fn=kernel)
    with awaited_launches(wait_for):
        assert launch(fn, "first") == "kernel first"
        assert launch(fn, "second") == "kernel second", "Triton compiles it, whatever is wrong"
    assert launch(fn, "third") == "kernel third"
    waited: list[object] = [(__name__, "kernel", "first"), ("compiled", "first", 6)]
    waited += [(__name__, "kernel", "second"), ("compiled", "second", 6), ("compiled", "third", 6)]
    assert done == waited
