"""Which passes are run to compile their kernels, and that none of them is launched."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.dora import Magnitudes
from cohort.core.numerics import Numerics
from cohort.kernels.packed_linear.frozen_product import agreed_shapes
from cohort.machine.compile_ahead import launches as training_ahead
from cohort.machine.compile_ahead.launched_model import stand_in_decoder
from cohort.machine.compile_ahead.launches import (
    _lengths,
    _Passes,
    _run,
    collect_launches,
    covering_sizes,
    kinds_of_adapters,
    launch_once,
    measured_adapters,
)
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.config_file import read_config
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from tests.training.small_models import save_llama, save_qwen2


def test_one_adapter_stands_for_each_padded_rank_with_and_without_dropout() -> None:
    specs = [
        AdapterSpec(r=r, lora_alpha=3.0 * r, lora_dropout=p) for r in (8, 16, 17, 64, 130) for p in (0.0, 0.1, 0.5)
    ]
    found = [(spec.r, spec.lora_dropout > 0) for spec in kinds_of_adapters(specs)]
    assert found == [(8, False), (8, True), (17, False), (17, True), (64, False), (64, True), (130, False), (130, True)]
    assert kinds_of_adapters([]) == ()
    # DoRA multiplies dropped rows in passes of their own; without dropout it reads what a plain adapter reads
    specs = [
        AdapterSpec(r=9, lora_alpha=1.0, lora_dropout=p, use_dora=dora) for p in (0.0, 0.1) for dora in (False, True)
    ]
    found = [(spec.lora_dropout > 0, spec.use_dora) for spec in kinds_of_adapters(specs)]
    assert found == [(False, False), (True, False), (True, True)]


def test_adapters_that_measure_memory_have_factors_alone() -> None:
    plain = [AdapterSpec(r=r, lora_alpha=2.0 * r) for r in (64, 16, 32)]
    assert [spec.r for spec in measured_adapters(plain)] == [16, 64]
    assert kinds_of_adapters([*plain, *measured_adapters(plain)]) == kinds_of_adapters(plain)
    drops = [AdapterSpec(r=16, lora_alpha=1.0, lora_dropout=0.1)]
    kinds = kinds_of_adapters([*drops, *measured_adapters(drops)])
    assert [(spec.r, spec.lora_dropout > 0) for spec in kinds] == [(16, False), (16, True)]
    # a bank holds the magnitudes of DoRA as well, and as many rows are measured
    dora = [AdapterSpec(r=16, lora_alpha=1.0, use_dora=True)]
    assert [spec.r for spec in measured_adapters(dora)] == [dora[0].num_rows]
    assert measured_adapters([]) == []


def test_few_more_sizes_have_every_tile_of_exact_products() -> None:
    pytest.importorskip("triton")
    from cohort.kernels.packed_linear.hopper.launch import tile_strips

    def tiles(rows: int, width: int) -> set[int]:
        return {columns for _, columns in tile_strips(rows, width, programs=132)}

    # Llama-3.1-8B on a Hopper GPU: q, k and v have tiles of 64 columns in passes of 1,536 tokens, and in none of those
    widths, known = (4096, 6144, 14336, 28672, 128256), (16384, 8192, 4096, 2048, 1024, 512, 256)
    more = covering_sizes(widths, known=known, tiles=tiles)
    assert more == [1536]
    for width in widths:
        seen = set[int]().union(*(tiles(rows, width) for rows in (*known, *more)))
        assert all(tiles(rows, width) <= seen for rows in range(1, 16385, 64))
    assert covering_sizes(widths, known=(*known, *more), tiles=tiles) == []


@pytest.mark.parametrize("tokens", [3, 20, 21, 41, 64, 200])
def test_a_trial_alone_fills_a_pass_to_its_last_token(tokens: int) -> None:
    lengths = _lengths(tokens, usual=20, num_trials=1)
    assert sum(lengths) == tokens
    assert min(lengths) > 1
    assert _lengths(tokens, usual=20, num_trials=3) == (20,) * max(1, round(tokens / 60))


def test_magnitudes_are_run_for_every_linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model whose weights are not read yet."""
    save_llama(tmp_path, num_layers=2)
    decoder = stand_in_decoder(read_config(tmp_path), dtype=torch.float32, device=torch.device("cpu"))
    seen: Counter[int] = Counter()
    own = Magnitudes.apply

    def apply(self: Magnitudes, *arguments: Any, magnitude_slots: Any, **named: Any) -> torch.Tensor:
        for slot in magnitude_slots:
            seen[len(slot.modules)] += 1
        return own(self, *arguments, magnitude_slots=magnitude_slots, **named)

    monkeypatch.setattr(Magnitudes, "apply", apply)
    dora = AdapterSpec(r=4, lora_alpha=1.0, lora_dropout=0.1, use_dora=True)
    _run(decoder, kinds_of_adapters([dora]), target_linears=decoder.linears, usual=20, sizes={64: _Passes.ALL})
    assert set(seen) == {len(decoder.linears)}


def test_smaller_sizes_are_run_for_their_tiles_alone_and_all_layers_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_qwen2(tmp_path, num_layers=4)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layers, part, runs = decoder.layers, decoder.part, list[str]()

    def note(_decoder: Any, specs: Any, *, sizes: Any, **_: Any) -> None:
        ranks = "+".join(str(spec.r) for spec in specs)
        runs.extend(f"r {ranks}, {tokens}: {passes.name}, {list(decoder.part)}" for tokens, passes in sizes.items())

    monkeypatch.setattr(training_ahead, "_run", note)
    compiler: Any = SimpleNamespace(collecting=contextlib.nullcontext)
    named: Any = {"compiler": compiler, "target_linears": decoder.linears, "usual": 20}
    adapters = kinds_of_adapters([AdapterSpec(r=r, lora_alpha=1.0) for r in (16, 32)])
    # 64 is wanted with its recordings, though its step is asked for as well
    collect_launches(decoder, adapters=adapters, pass_tokens=(200, 64), step_tokens=(100, 64), **named)
    sizes = ("200: ALL, [0, 3]", "100: STEP, [3]", "64: TRAINING, [3]")
    assert runs == [f"r {ranks}, {size}" for ranks in ("16+32", "32", "16") for size in sizes]
    assert (decoder.layers, decoder.part) == (layers, part)
    runs.clear()
    collect_launches(decoder, adapters=adapters[:1], pass_tokens=(200,), **named)
    assert runs == ["r 16, 200: ALL, [0, 3]"]
    runs.clear()
    # where a sweep begins; 32 is none of the sizes
    collect_launches(
        decoder, adapters=adapters, pass_tokens=(200, 64), step_tokens=(100,), first_tokens=(32, 64, 100), **named
    )
    sizes = ("64: ALL, [0, 3]", "100: STEP, [3]", "200: TRAINING, [3]")
    assert runs == [f"r {ranks}, {size}" for ranks in ("16+32", "32", "16") for size in sizes]


@pytest.mark.parametrize(
    ("dropout", "passes"),
    [
        (0.0, "step evaluate SUMS MEASURES, step SUMS, step"),
        # an evaluation drops nothing, so it launches other kernels
        (0.1, "step evaluate DROPPED_SUMS MEASURES, step evaluate DROPPED_SUMS MEASURES, step"),
    ],
)
def test_passes_of_a_size_that_launch_what_others_do_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropout: float, passes: str
) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    seen = list[str]()
    recorded: Any = SimpleNamespace(launch=lambda need, *, kind: seen.append(kind.name))
    monkeypatch.setattr(training_ahead, "CapturedPasses", lambda *_, **__: recorded)
    for name in ("step", "evaluate"):
        monkeypatch.setattr(Executor, name, lambda *_, name=name, **__: seen.append(name))
    specs = kinds_of_adapters([AdapterSpec(r=4, lora_alpha=1.0, lora_dropout=dropout)])
    found = list[str]()
    for size in (_Passes.ALL, _Passes.TRAINING, _Passes.STEP):
        _run(decoder, specs, target_linears=decoder.linears, usual=20, sizes={64: size})
        found.append(" ".join(seen))
        seen.clear()
    assert ", ".join(found) == passes


def test_kernels_are_loaded_by_one_pack_of_all_adapters_and_by_one_without_dropout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path, num_layers=3)
    decoder = stand_in_decoder(read_config(tmp_path), dtype=torch.float32, device=torch.device("cpu"))
    recorded: Any = SimpleNamespace(launch=lambda need, *, kind: names.append(kind.name))
    monkeypatch.setattr(training_ahead, "CapturedPasses", lambda *_, **__: recorded)
    packs, own = list[list[float]](), training_ahead._run

    def run(decoder: Any, specs: Any, **named: Any) -> None:
        packs.append([spec.lora_dropout for spec in specs])
        own(decoder, specs, **named)

    monkeypatch.setattr(training_ahead, "_run", run)
    for dropouts, expected in (((0.0,), [[0.0, 0.0]]), ((0.0, 0.1), [[0.0, 0.0], [0.0, 0.1, 0.0, 0.1]])):
        packs.clear()
        names: list[str] = []
        adapters = kinds_of_adapters(
            [AdapterSpec(r=r, lora_alpha=1.0, lora_dropout=dropout) for r in (16, 32) for dropout in dropouts]
        )
        launch_once(
            decoder,
            target_linears=decoder.linears,
            adapters=adapters,
            usual=20,
            pass_tokens=(64,),
            numerics=Numerics.FAST,
        )
        assert packs == expected
        assert names == [*["SUMS", "MEASURES"], *["DROPPED_SUMS", "MEASURES"] * (len(expected) > 1)]
    assert len(decoder.layers) == 3


def test_no_blas_is_asked_about_a_model_of_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llama(tmp_path, num_layers=3)
    decoder = stand_in_decoder(read_config(tmp_path), dtype=torch.float32, device=torch.device("cpu"))
    decoder.use_exact_products()
    assert agreed_shapes(decoder.products) is not None
    own = Executor.__init__

    def begin(executor: Executor, *arguments: Any, **named: Any) -> None:
        own(executor, *arguments, **named)
        # as on a GPU
        executor.bank.is_exact = True

    monkeypatch.setattr(Executor, "__init__", begin)
    monkeypatch.setattr(training_ahead, "CapturedPasses", lambda *_, **__: SimpleNamespace())
    launch_once(
        decoder,
        target_linears=decoder.linears,
        adapters=[AdapterSpec(r=16, lora_alpha=1.0)],
        usual=20,
        pass_tokens=(64,),
        numerics=Numerics.FAST,
        is_enough=lambda: agreed_shapes(decoder.products) is None,
    )
    assert agreed_shapes(decoder.products) is None


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is launched, in its order; recorded passes with their rows."""
    found: list[str] = []
    recorded: Any = SimpleNamespace(launch=lambda need, *, kind: found.append(f"{kind.name} {need.num_rows}"))
    monkeypatch.setattr(training_ahead, "CapturedPasses", lambda *_, **__: recorded)
    monkeypatch.setattr(Executor, "step", lambda _: found.append("step"))
    monkeypatch.setattr(Executor, "evaluate", lambda _, *__, **___: found.append("evaluate"))
    return found


@pytest.mark.parametrize("num_passes", range(18))
def test_no_more_kernels_are_loaded_than_there_is_time_for(
    num_passes: int, done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path, num_layers=3)
    decoder = stand_in_decoder(read_config(tmp_path), dtype=torch.float32, device=torch.device("cpu"))
    own = Executor.load

    def load(executor: Executor, *arguments: Any, **named: Any) -> None:
        assert len(done) < num_passes, "for no pass"
        own(executor, *arguments, **named)

    monkeypatch.setattr(Executor, "load", load)
    launch_once(
        decoder,
        target_linears=decoder.linears,
        adapters=[AdapterSpec(r=16, lora_alpha=1.0, lora_dropout=dropout) for dropout in (0.0, 0.1)],
        usual=20,
        pass_tokens=(64, 32),
        numerics=Numerics.FAST,
        is_enough=lambda: len(done) == num_passes,
    )
    expected = [
        launched
        for kind in ("SUMS", "DROPPED_SUMS")
        for rows in (64, 32)
        for launched in ("step", "evaluate", f"{kind} {rows}", f"MEASURES {rows}")
    ]
    assert done == expected[:num_passes]
    assert len(decoder.layers) == 3


def test_sizes_with_other_tiles_are_loaded_by_passes_that_train(done: list[str], tmp_path: Path) -> None:
    save_llama(tmp_path, num_layers=3)
    decoder = stand_in_decoder(read_config(tmp_path), dtype=torch.float32, device=torch.device("cpu"))
    launch_once(
        decoder,
        target_linears=decoder.linears,
        adapters=[AdapterSpec(r=16, lora_alpha=1.0)],
        usual=20,
        pass_tokens=(64,),
        tile_tokens=(32,),
        numerics=Numerics.FAST,
    )
    assert done == ["step", "evaluate", "SUMS 64", "MEASURES 64", "step", "SUMS 32"]


def test_packs_launch_no_kernel_that_was_not_handed_to_workers(repository: Path) -> None:
    """A kernel that is not is compiled inside a first step, while the GPU waits."""
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.machine.compile_ahead.uncollected_launches"]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert all(num_collected > 20 for num_collected, *_ in found.values())
    assert {numerics: others for numerics, (_, others, _) in found.items()} == {"exact": [], "fast": []}
    # nor do all passes of all packs at all sizes
    assert {numerics: others for numerics, (*_, others) in found.items()} == {"exact": [], "fast": []}


@pytest.mark.gpu
def test_kernels_are_compiled_by_workers_and_nothing_is_launched(tmp_path: Path) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda")
    name = next(iter(decoder.linears))
    before = decoder.weight_of(name).clone()
    with KernelCompiler(num_workers=4) as compiler:
        collect_launches(
            decoder,
            compiler=compiler,
            target_linears=decoder.linears,
            adapters=kinds_of_adapters([AdapterSpec(r=16, lora_alpha=16.0)]),
            usual=20,
            pass_tokens=(200,),
        )
        compiled = compiler.wait()
    assert compiled.num_kernels > 0
    assert (compiled.num_failed, compiled.first_error) == (0, "")
    assert torch.equal(decoder.weight_of(name), before)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["exact", "fast", "pairs", "recomputed"])
def test_passes_that_launch_nothing_take_what_others_take(repository: Path, kind: str) -> None:
    # in a process of its own, whose kernels nothing has loaded
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "tests.machine.compile_ahead.measured_unlaunched", kind]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    num_kernels, before, after = json.loads(done.stdout.splitlines()[-1])
    assert num_kernels > 10, "kernels were not there"
    assert before == after
