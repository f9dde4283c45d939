"""The price of a sweep: 60 trials with early exit against ONE run of PEFT over the same rows.

True shapes, random weights, rows of GSM8K's lengths. The product's own study, admission and loop are driven; the losses
they see are those of curves recorded on a real model (``record_curves.py``), since random weights have no meaningful
exits. Both sides leave out loading and the warm-up of kernels (for the sweep: compiling and recording graphs). The
price holds everything that grows with the rows: training with every trial's warm-up, evaluations, optimizer, the host.
What a trial costs once, whatever the rows (new adapters, states parked and moved), is in ``price_all_in`` for these few
rows and in ``price_full_data``, the price at all 7,473 rows of GSM8K. ``sweep_step_efficiency`` is the speed of the
sweep's steps over that of replayed passes of the same sizes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, gsm8k_rows, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import peft_step
from benchmarks.sweeps.price_rows import price_columns, price_headline, price_row
from benchmarks.sweeps.replayed_sweep import Curves, SweepTimes, TimedExecutor, predicted, run_sweep
from benchmarks.sweeps.step_efficiency import replayed_steps, step_efficiency
from benchmarks.sweeps.sweep_grid import plan_grid
from cohort.adapters.layout import AdapterLayout
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.machine.compile_ahead.launches import collect_launches, kinds_of_adapters
from cohort.machine.compile_ahead.task_kernels import PASS_TOKENS, STEP_TOKENS
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.machine.machine import Machine
from cohort.memory.budget import Sizes, choose_sizes, size_facts
from cohort.memory.pass_estimates import estimated_needs
from cohort.memory.size_inputs import SizeInputs, SizeRequest
from cohort.models.config import DecoderConfig
from cohort.models.counts import activation_bytes_per_token
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN, WEIGHT_FORMATS
from cohort.tuning import EarlyExitSettings, EvaluationPlan, EvaluationSettings, ReplayReport, plan_evaluation_rows
from cohort.tuning.evaluation_times import Workload

# the recorded train losses are smoothed already
RECORDED_EXITS = EarlyExitSettings(ema_weight=1.0)
# ALTO's: one selection that keeps a quarter, 71 % saved
SELECTION_ONLY = EarlyExitSettings(
    ema_weight=1.0, select_fraction=0.25, reselect_fraction=1.0, gap_threshold=1e9, slope_threshold=1e9
)


def peft_seconds(shape: str, rows: TokenisedRows, *, batch_size: int, device: str, most_steps: int) -> dict[str, float]:
    """Return the seconds of one PEFT run over ``rows``, from at most ``most_steps`` of its steps, and of its median."""
    step, model = peft_step(shape, rows, batch_size=batch_size, device=device)
    for _ in range(3):
        step()
    _wait()
    times = []
    num_steps = len(rows) // batch_size
    for _ in range(min(num_steps, most_steps)):
        begun = time.perf_counter()
        step()
        _wait()
        times.append(time.perf_counter() - begun)
    del step, model
    if device == "cuda":
        torch.cuda.empty_cache()
    return {
        "seconds": sum(times) / len(times) * num_steps,
        "median_step_ms": sorted(times)[len(times) // 2] * 1e3,
        "measured_steps": len(times),
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def variants(planned: Any, curves: Curves) -> dict[str, EarlyExitSettings]:
    """Return the early exits that are priced; the last keeps as many trials as leave 83 % saved."""
    found = {"selection_only": SELECTION_ONLY, "recorded_exits": RECORDED_EXITS}
    for kept in range(len(planned) // 4, 0, -1):
        settings = EarlyExitSettings(ema_weight=1.0, select_fraction=kept / len(planned), reselect_fraction=1.0)
        if predicted(planned, curves, settings).saved_share >= 0.83:
            found["83_saved"] = settings
            break
    return found


def warm_up(executor: TimedExecutor, planned: Any, validation: TokenisedRows) -> float:
    """Compile every kernel that the sweep will use; return the seconds."""
    begun = time.perf_counter()
    if executor.bank.weights_RD.is_cuda:
        with KernelCompiler() as compiler:
            collect_launches(
                executor.decoder,
                compiler=compiler,
                target_linears=executor.decoder.linears,
                adapters=kinds_of_adapters(trial.spec.adapter for trial in planned),
                usual=round(float(executor.train_rows.lengths.mean())),
                pass_tokens=[tokens for tokens in PASS_TOKENS if tokens <= executor.settings.token_budget],
                step_tokens=[tokens for tokens in STEP_TOKENS if tokens <= executor.settings.token_budget],
                numerics=executor.settings.numerics,
            )
            print(f"{compiler.wait()} in {time.perf_counter() - begun:.1f} s", flush=True)
    for r in (64, 32, 16):
        specs = [trial.spec for trial in planned if trial.spec.adapter.r == r and trial.spec.batch_size in (1, 8)][:4]
        for spec in specs:
            if executor.fits(spec):
                executor.load(spec)
        executor.step()
        executor.evaluate(executor.resident, rows=validation, row_ids=[0])
        for trial_id in executor.resident:
            executor.drop(trial_id)
    _wait()
    return time.perf_counter() - begun


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--format", choices=sorted(WEIGHT_FORMATS), default=PLAIN.name, help="of the frozen weights")
    parser.add_argument("--numerics", choices=[mode.value for mode in Numerics], default=Numerics.FAST.value)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--curves", type=Path, default=Path(__file__).parent / "curves" / "gsm8k_stories260K.json.gz")
    parser.add_argument("--token-budget", type=int, default=None)
    parser.add_argument("--peft-steps", type=int, default=160, help="most PEFT steps to time")
    parser.add_argument("--variants", nargs="+", default=None)
    parser.add_argument("--without-graphs", action="store_true")
    parser.add_argument("--no-peft", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _sizes(
    planned: Any,
    decoder: Decoder,
    *,
    rows: TokenisedRows,
    token_budget: int | None,
    numerics: Numerics = Numerics.FAST,
) -> Sizes:
    """Return the sizes that a run would choose here."""
    free = torch.cuda.mem_get_info()[0] if decoder.device.type == "cuda" else 8 << 30
    activation_bytes = activation_bytes_per_token(decoder.config, bytes_per_value=decoder.dtype.itemsize)
    inputs = SizeInputs(
        specs=[trial.spec for trial in planned],
        layout=AdapterLayout(dict(decoder.linears)),
        machine=Machine(
            device=decoder.device,
            device_name="benchmark",
            dtype=str(decoder.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            memory_bytes=free,
            numerics=numerics,
        ),
        longest_row=int(rows.lengths.max()),
        request=SizeRequest(token_budget=token_budget),
        needs=estimated_needs(activation_bytes) if decoder.device.type == "cuda" else None,
    )
    return choose_sizes(inputs, free_bytes=free)


def _loaded(config: DecoderConfig, weight_format: str, *, device: str) -> tuple[Decoder, float]:
    """Return the decoder and the seconds it took."""
    begun = time.perf_counter()
    decoder = random_decoder(
        config,
        device=device,
        dtype=torch.bfloat16 if device == "cuda" else torch.float32,
        weight_format=WEIGHT_FORMATS[weight_format],
    )
    _wait()
    return decoder, time.perf_counter() - begun


def _named(shape: str, weight_format: str, numerics: str = Numerics.FAST.value) -> str:
    named = shape if weight_format == PLAIN.name else f"{shape}_{weight_format}"
    return named if numerics == Numerics.FAST else f"{named}_{numerics}"


def _evaluation_plan(planned: Any, *, rows: TokenisedRows, validation: TokenisedRows) -> EvaluationPlan:
    return plan_evaluation_rows(
        [
            Workload(candidate=t.candidate, tokens_per_step=t.spec.batch_size * float(rows.lengths.mean()))
            for t in planned
        ],
        num_available=len(validation),
        mean_tokens_per_row=float(validation.lengths.mean()),
        settings=EvaluationSettings(),
        kept_share=RECORDED_EXITS.kept_share(),
    )


def _check_decisions(times: SweepTimes, expected: ReplayReport) -> None:
    """Refuse a price where trials ended otherwise than by the curves, as by a gradient that is not finite."""
    if abs(times.saved_share - expected.saved_share) > 1e-3:
        raise SystemExit(
            f"no price: the sweep saved {times.saved_share:.3f} of its steps, and its curves decide on "
            f"{expected.saved_share:.3f}; trials failed, or had gradients that are not finite"
        )


def _recorded(executor: TimedExecutor) -> dict[str, Any]:
    """Return which sizes have been recorded so far."""
    if executor.captured is None:
        return {}
    sizes = {kind.name.lower(): rows for kind, rows in executor.captured.sizes.items()}
    print("recorded", sizes, flush=True)
    return {"recorded_rows": sizes}


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    need_gpu(shape=arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    named = _named(arguments.shape, arguments.format, arguments.numerics)
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    rows = gsm8k_rows(arguments.rows, vocab_size=config.vocab_size)
    validation = gsm8k_rows(128, vocab_size=config.vocab_size, seed=1)
    curves = Curves(arguments.curves)
    planned = plan_grid(len(rows))
    peft = {
        n: peft_seconds(arguments.shape, rows, batch_size=n, device=device, most_steps=arguments.peft_steps)
        for n in (() if arguments.no_peft else (1, 8))
    }
    print("PEFT:", peft, flush=True)
    decoder, load_seconds = _loaded(config, arguments.format, device=device)
    numerics = Numerics(arguments.numerics)
    sizes = _sizes(planned, decoder, rows=rows, token_budget=arguments.token_budget, numerics=numerics)
    settings = replace(sizes.executor, graph_tokens=0) if arguments.without_graphs else sizes.executor
    print(
        size_facts(sizes), "graphs below", settings.graph_tokens, "state_store", sizes.device_state_bytes >> 30, "GiB"
    )
    plan = _evaluation_plan(planned, rows=rows, validation=validation)
    executor = TimedExecutor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=settings,
        device=device,
        compute_dtype=decoder.dtype,
    )
    warm_up_seconds = warm_up(executor, planned, validation)
    print(f"kernels warmed up in {warm_up_seconds:.1f} s", flush=True)
    found: list[dict[str, Any]] = []

    def write(found: list[dict[str, Any]]) -> None:
        write_result(
            arguments.out or RESULTS / f"sweep_price_{named}.json",
            question="What does a sweep of 60 trials with early exit cost, in runs of PEFT over the same rows?",
            headline=price_headline(found, shape=named),
            rows=found,
            notes={
                "rows": len(rows),
                "mean_tokens": float(rows.lengths.mean()),
                "epochs": 1,
                "format": arguments.format,
                "numerics": arguments.numerics,
                "peft": {f"batch_{batch_size}": times for batch_size, times in peft.items()},
                "sizes": {**asdict(size_facts(sizes)), "graph_tokens": settings.graph_tokens},
                "device_state_bytes": sizes.device_state_bytes,
                "evaluation": asdict(plan),
                "load_seconds": load_seconds,
                "warm_up_seconds": warm_up_seconds,
                "left_out": "loading, compiling, checkpoints to disk",
                "curves": curves.source,
                "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
            },
        )

    for name, early_exit in variants(planned, curves).items():
        if arguments.variants is not None and name not in arguments.variants:
            continue
        times = run_sweep(
            executor,
            planned,
            curves=curves,
            early_exit=early_exit,
            sizes=sizes,
            validation=validation,
            num_evaluation_rows=plan.num_rows,
            say=lambda text: print(text, flush=True),
        )
        _check_decisions(times, predicted(planned, curves, early_exit))
        row = price_row(name, early_exit, times, peft=peft, shape=arguments.shape, num_rows=len(rows))
        found.append(row | _recorded(executor))
        write(found)
    replayed = replayed_steps(executor)
    for row in found:
        row |= {"replayed_step_ms": replayed, "step_efficiency": step_efficiency(row["steps"], replayed)}
    write(found)
    print_table(found, columns=price_columns(has_peft=bool(peft)))


if __name__ == "__main__":
    main()
