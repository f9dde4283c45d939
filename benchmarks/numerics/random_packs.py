"""Has a trial the same bits after 50 steps whatever happens around it? Random packs until the time is up.

``python -m benchmarks.numerics.random_packs [--seconds 110] [--models DIRECTORY] [--bases 1b 8b] [--out RESULT.json]``.
Five trials train alone first. Then packs of 2 to 32 are drawn: some of the five among neighbours of other ranks, rows,
batch sizes and dropouts; passes recorded or not, token budgets lowered on the way, trials parked and returned,
neighbours replaced. One more process for each base is killed by SIGKILL in the middle of a later step and its trials
go on elsewhere. Losses of all steps, an evaluation and all weights are compared bit for bit. Bases are shapes of
:mod:`benchmarks.llama_shapes` with few layers, and the checkpoints ``DIRECTORY/*/hf``.
"""

from __future__ import annotations

import argparse
import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.numerics import killed_run
from benchmarks.numerics.bases import LAYERS, Base, compile_kernels
from benchmarks.numerics.late_kernels import LateKernels
from benchmarks.numerics.pack_runs import PROBES, Found, Pack, Run, draw_pack
from benchmarks.numerics.places import Row, changed

__all__ = ["compared_packs"]

QUESTION = "Does a trial have the same bits after 50 steps in any pack, recorded or not, parked, killed and resumed?"


def compared_packs(
    base: Base, *, seconds: float, seed: int, steps: int, kills: bool = True, most_packs: int = 1000
) -> Iterator[Row]:
    """Yield a row for each random pack, and one for a killed process, until ``seconds`` are over."""
    end = time.perf_counter() + seconds
    decoder = base.decoder()
    if decoder.device.type == "cuda":
        compile_kernels(decoder)
    own, *others = Base.rows_of(decoder)
    draw = random.Random(seed)
    late = LateKernels()
    killed = None
    if kills:
        after = draw.randint(steps // 10 + 1, steps * 4 // 5)
        killed = killed_run.start(base.name, steps=after, most_steps=steps, seed=seed)
    probes = {probe.trial_id: probe for probe in PROBES}

    @functools.cache
    def alone(trial_id: int) -> Found:
        return Run(decoder, Pack(probes=(probes[trial_id],)), own, steps=steps).found()[trial_id]

    def resumed(killed: killed_run.KilledRun) -> Row:
        begun = time.perf_counter()
        states, losses = killed.outcome()
        pack = draw_pack(draw, size=9, recorded=False, probes=[probe for probe in PROBES if probe.trial_id in states])
        run = Run(decoder, pack, own, steps=steps, draw=draw, other_rows=others, states=states, losses=losses)
        found = run.found()
        row: Row = {"base": base.described, **pack.described(), "killed_after": killed.steps, **run.events}
        return {**row, **_differences(found, alone), "seconds": time.perf_counter() - begun, **late.taken()}

    taken, number = 0.0, 0
    # a large and a small pack first, so that few seconds show both
    sizes = [32, 5, 2, 31]
    while number < most_packs and (number == 0 or time.perf_counter() + taken < end):
        begun = time.perf_counter()
        pack = draw_pack(
            draw, size=sizes[number] if number < len(sizes) else draw.randint(2, 32), recorded=number % 2 == 0
        )
        run = Run(decoder, pack, own, steps=steps, draw=draw, other_rows=others)
        found = run.found()
        row = {"base": base.described, **pack.described(), **run.events, **_differences(found, alone)}
        number, taken = number + 1, time.perf_counter() - begun
        yield {**row, "seconds": taken, **late.taken()}
        if killed is not None and number == 1:
            yield resumed(killed)


def _differences(found: dict[int, Found], alone: Callable[[int], Found]) -> Row:
    """Count what was compared, and what differed."""
    row: Row = dict.fromkeys(("trials", "losses", "other_losses", "weights", "other_weights"), 0)
    for trial_id, own in found.items():
        expected = alone(trial_id)
        row["trials"] += 1
        row["losses"] += len(expected.losses)
        row["other_losses"] += sum(a != b for a, b in zip(own.losses, expected.losses, strict=True))
        row["weights"] += expected.weights.numel()
        row["other_weights"] += round(changed(own.weights, expected.weights) * expected.weights.numel())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "random_packs.json")
    parser.add_argument("--seconds", type=float, default=110.0, help="for all bases together")
    parser.add_argument("--bases", nargs="*", default=["1b", "8b"], help=f"shapes ({', '.join(LAYERS)}) or directories")
    parser.add_argument("--models", type=Path, help="folder of small checkpoints, each in NAME/hf")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = (
        [*options.bases, *sorted(str(path) for path in options.models.glob("*/hf"))]
        if options.models
        else options.bases
    )
    end, found = time.perf_counter() + options.seconds, []
    for number, name in enumerate(names):
        left = (end - time.perf_counter()) / (len(names) - number)
        try:
            for row in compared_packs(Base(name), seconds=left, seed=options.seed + number, steps=options.steps):
                found.append(row)
                print(row, flush=True)
                write_result(options.out, question=QUESTION, headline=_headline(found), rows=found)
        except Exception as error:  # the other bases are worth having
            found.append({"base": name, "error": f"{type(error).__name__}: {error}"[:600]})
            print(found[-1], flush=True)
        write_result(options.out, question=QUESTION, headline=_headline(found), rows=found)
    columns = ("base", "size", "ranks", "recorded", "trials", "losses", "other_losses", "weights", "other_weights")
    print_table(found, columns=(*columns, "replays", "killed_after", "error"))


def _headline(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    done = [row for row in rows if "trials" in row]
    sums = ("trials", "losses", "other_losses", "weights", "other_weights")
    return {
        "packs": len(done),
        "errors": len(rows) - len(done),
        **{f"{name}_compared" if "other" not in name else name: sum(row[name] for row in done) for name in sums},
    }


if __name__ == "__main__":
    main()
