"""Which kernels of a cold start are compiled before the pass that needs them, and which are not, and why?

In a cache of its own: workers compile what a 1B model's passes of ranks 16, 32 and 64 launch, as ``cohort tune`` has
them do; then the passes run, and each kernel that one of them has to compile is listed with what became of it in the
workers: never handed in, refused with an error, or kept under another name (with the parts of the name that differ).
"""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, trial_specs

QUESTION = "Which kernels of a cold start are compiled before the pass that needs them?"
RANKS = (16, 32, 64)
USUAL = 180


def name_parts(job: bytes, capability: tuple[int, int]) -> dict[str, str]:
    """Return what the name of a compiled kernel in Triton's cache is made of, as this process sees it."""
    from cohort.machine.compile_ahead import workers

    compiler: Any = importlib.import_module("triton.compiler.compiler")
    cache: Any = importlib.import_module("triton.runtime.cache")
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        driver.set_active(workers.NamedGpu(capability))
    module, name, signature, constants, options, attrs = pickle.loads(job)
    kernel: Any = importlib.import_module(module)
    for part in name.split("."):
        kernel = getattr(kernel, part)
    target = kernel.create_binder()[2]
    backend = compiler.make_backend(target)
    source = kernel.ASTSource(kernel, signature, constants, attrs)
    parsed = backend.parse_options(dict(options, **source.parse_options()))
    return {
        "triton": str(cache.triton_key()) if hasattr(cache, "triton_key") else "",
        "function": str(kernel.cache_key),
        "constexprs": str([(key[0], str(value[0])) for key, value in kernel.used_global_vals.items()]),
        "attrs": str(attrs),
        "signature": str(sorted(signature.items())),
        "constants": str([(key, str(getattr(value, "cache_key", value))) for key, value in sorted(constants.items())]),
        "backend": str(backend.hash()),
        "options": str(parsed.hash()),
        "options_read": str(sorted((key, str(value)) for key, value in vars(parsed).items())),
        "environment": str(sorted(compiler.get_cache_invalidating_env_vars().items())),
    }


class _Misses:
    """Notes each kernel that a pass has to have compiled or loaded."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._has_missed = False

    def __enter__(self) -> _Misses:
        jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
        knobs: Any = importlib.import_module("triton.knobs")
        self._own = own = jit._do_compile

        def listen(*, cache_hit: bool, **_: Any) -> None:
            self._has_missed = not cache_hit

        def compile_and_note(
            fn: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attrs: Any, *rest: Any
        ) -> Any:
            job = pickle.dumps((fn.fn.__module__, fn.fn.__qualname__, signature, constants, vars(options), attrs))
            self._has_missed = False
            began = time.perf_counter()
            kernel = own(fn, key, signature, device, constants, options, attrs, *rest)
            self.found.append(
                {
                    "kernel": fn.fn.__name__,
                    "ms": (time.perf_counter() - began) * 1e3,
                    "compiled": self._has_missed,
                    "job": job,
                    "hash": getattr(kernel, "hash", ""),
                }
            )
            return kernel

        knobs.compilation.listener = listen
        jit._do_compile = compile_and_note
        return self

    def __exit__(self, *_: object) -> None:
        jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
        knobs: Any = importlib.import_module("triton.knobs")
        knobs.compilation.listener = None
        jit._do_compile = self._own


def main() -> None:
    """Compile ahead, run the passes, print what they had to compile, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "compiled_ahead.json")
    options = parser.parse_args()
    need_gpu()
    with tempfile.TemporaryDirectory(prefix="compiled-ahead-") as folder:
        # before Triton is imported: workers find it, too
        os.environ["TRITON_CACHE_DIR"] = folder
        _measure(options.shape, options.num_layers, options.out)


def _measure(shape: str, num_layers: int, out: Path) -> None:
    from cohort.adapters.spec import AdapterSpec
    from cohort.machine.compile_ahead.launched_model import stand_in_decoder
    from cohort.machine.compile_ahead.launches import collect_launches, kinds_of_adapters
    from cohort.machine.compile_ahead.task_kernels import PASS_TOKENS, STEP_TOKENS
    from cohort.machine.compile_ahead.workers import KernelCompiler

    seconds: dict[str, float] = {}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = act()
        seconds[name] = time.perf_counter() - began
        print(f"{name}: {seconds[name]:.2f} s", flush=True)
        return found

    compiler = timed("start workers", KernelCompiler)
    with compiler:
        config = decoder_config(shape, num_layers=num_layers)
        stand_in = timed("stand-in", lambda: stand_in_decoder(config, dtype=torch.bfloat16, device="cuda"))
        timed(
            "collect launches",
            lambda: collect_launches(
                stand_in,
                compiler=compiler,
                target_linears=stand_in.linears,
                adapters=kinds_of_adapters(AdapterSpec(r=r, lora_alpha=1.0) for r in RANKS),
                usual=USUAL,
                pass_tokens=PASS_TOKENS,
                step_tokens=STEP_TOKENS,
            ),
        )
        compiled = timed("wait for workers", compiler.wait)
        decoder = timed("model", lambda: random_decoder(config, device="cuda", dtype=torch.bfloat16))
        print(compiled, flush=True)
        for future in compiler._compiling.values():
            if (error := future.exception()) is not None:
                print("refused:", " ".join(f"{type(error).__name__}: {error}".split())[:300], flush=True)
        with _Misses() as misses:
            timed("memory passes", lambda: _memory_passes(decoder))
            timed("training", lambda: _train(decoder))
        rows = _rows(compiler, misses.found)
    missed = [row for row in rows if row["compiled"]]
    print_table(missed or rows[:1], columns=["kernel", "ms", "why"])
    headline = {
        "kernels_met": float(len(rows)),
        "kernels_not_compiled_ahead": float(len(missed)),
        "seconds_compiling_in_passes": sum(row["ms"] for row in missed) / 1e3,
        "seconds_waiting_for_workers": seconds["wait for workers"],
        "kernels_refused": float(compiled.num_failed),
    }
    notes = {"seconds": seconds, "first_error": compiled.first_error, "num_compiled": compiled.num_kernels}
    write_result(out, question=QUESTION, headline=headline, rows=rows, notes=notes)
    print(headline)


def _memory_passes(decoder: Any) -> None:
    from cohort.adapters.bank import aligned_rank
    from cohort.training.memory_probe import MemoryProbe, ProbePass, probe_grid

    probe = MemoryProbe(decoder, target_linears=decoder.linears, num_rank_rows=aligned_rank(max(RANKS)))
    for planned in probe_grid(RANKS, tokens=8192, longest=400, usual=USUAL):
        probe.measure(planned)
    probe.measure(ProbePass(r=max(RANKS), lengths=(400,) * 40))
    probe.close()


def _train(decoder: Any) -> None:
    """Step packs of the sizes that a sweep has, launched and recorded, and evaluate them."""
    rows = rows_of_lengths([(60, 40 + 7 * (row % 40)) for row in range(128)], vocab_size=decoder.config.vocab_size)
    for ranks, batch_size in (((16,), 1), ((64,), 2), (RANKS, 1), (RANKS, 4), (RANKS * 5, 2), (RANKS * 8, 4)):
        executor = build_executor(
            decoder, trial_specs(ranks, batch_size=batch_size), rows, token_budget=16384, graph_tokens=4096
        )
        for _ in range(3):
            executor.step()
        executor.evaluate(executor.resident, rows=rows, row_ids=range(9))
    torch.cuda.synchronize()


def _rows(compiler: Any, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for miss in found:
        job = miss["job"]
        why = ""
        if miss["compiled"]:
            future = compiler._compiling.get(job)
            if future is None:
                why = _nearest(job, compiler._compiling)
            elif (error := future.exception()) is not None:
                why = f"refused: {type(error).__name__}: {error}"[:200]
            else:
                why = _differences(compiler, job)
        rows.append({"kernel": miss["kernel"], "ms": miss["ms"], "compiled": miss["compiled"], "why": why})
    return rows


def _differences(compiler: Any, job: bytes) -> str:
    own = name_parts(job, compiler._capability)
    # a worker knows no ``__main__``
    parts_there = importlib.import_module("benchmarks.kernels.compiled_ahead").name_parts
    texts = set()
    # several workers: any of them may have had the job
    for future in [compiler._submit(parts_there, job, compiler._capability) for _ in range(8)]:
        theirs = future.result()
        for part, value in own.items():
            if theirs[part] != value:
                texts.add(f"{part}: {_difference(value, theirs[part])}")
    return "another name: " + ("; ".join(sorted(texts)) or "the parts are the same")


def _difference(own: str, theirs: str) -> str:
    first = next((at for at, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), 0)
    start = max(0, first - 30)
    return f"{own[start : first + 60]!r} here, {theirs[start : first + 60]!r} there"


def _nearest(job: bytes, handed_in: dict[bytes, Any]) -> str:
    """Name what differs from the most similar job of the same kernel."""
    module, name, *parts = pickle.loads(job)
    closest: list[str] | None = None
    for other in handed_in:
        their_module, their_name, *their_parts = pickle.loads(other)
        if (module, name) != (their_module, their_name):
            continue
        differences = []
        for own, theirs in zip(parts, their_parts, strict=True):
            for key in {**own, **theirs}:
                if str(own.get(key)) != str(theirs.get(key)):
                    differences.append(f"{key}: {own.get(key)} here, {theirs.get(key)} ahead")
        if closest is None or len(differences) < len(closest):
            closest = differences
    return "never handed in: " + ("no such kernel" if closest is None else "; ".join(closest) or "pickled otherwise")


if __name__ == "__main__":
    main()
