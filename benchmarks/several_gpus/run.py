"""What one model over several GPUs, or over a GPU and the host's memory, costs: one part a call.

    python -m benchmarks.several_gpus.run --part host_streamed     # one GPU
    python -m benchmarks.several_gpus.run --part memory            # one GPU
    python -m benchmarks.several_gpus.run --part links             # two GPUs or more
    python -m benchmarks.several_gpus.run --part scaling           # two GPUs or more
    python -m benchmarks.several_gpus.run --part serving           # two GPUs or more
    python -m benchmarks.several_gpus.run --part windows           # two GPUs or more
    python -m benchmarks.several_gpus.run --part figure13          # two GPUs or more: all strategies
    python -m benchmarks.several_gpus.run --part pipeline          # two GPUs or more; without: by the simulator
    python -m benchmarks.several_gpus.run --part sweep             # two GPUs or more; 8B, or --shape 70b
    python -m benchmarks.several_gpus.run --part run_tasks         # two GPUs
    python -m benchmarks.several_gpus.run --part four_gpus         # any machine: projected from results of two GPUs
    python -m benchmarks.several_gpus.run --part sweep_simulated   # any machine: the schedule on 1 to 8 GPUs
    python -m benchmarks.several_gpus.run --part queue             # any machine: tasks in simulated time

`--tiny` tries a part out on any machine, with processes on the CPU in place of GPUs. Each part takes less than four
minutes and writes one JSON file with a headline.
"""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.several_gpus.part import Part
from benchmarks.several_gpus.strategies import STRATEGIES

__all__ = ["PARTS", "main"]

# each is a module here, imported when it is asked for: the planner of pipelines needs a library that others do not
PARTS = (
    "figure13",
    "four_gpus",
    "host_streamed",
    "links",
    "memory",
    "pipeline",
    "queue",
    "run_tasks",
    "scaling",
    "serving",
    "sweep",
    "sweep_simulated",
    "windows",
)


SIMULATED = ("four_gpus", "pipeline", "queue", "sweep_simulated")
"""Parts for any machine."""


def main() -> None:
    """Measure one part, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="host_streamed")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, on the CPU where there is no GPU")
    parser.add_argument("--gpus", type=int, default=None, help="GPUs, or processes on a CPU; all there are by default")
    parser.add_argument("--shape", default="8b", help="of figure13, pipeline, scaling and sweep: 1b, 8b or 70b")
    parser.add_argument("--num-layers", type=int, default=None, help="layers of the shape; all of them by default")
    parser.add_argument("--streamed", type=int, default=None, help="how many of them are streamed")
    parser.add_argument("--tokens", type=int, nargs="+", default=None, help="tokens of a pass")
    parser.add_argument("--no-resident", action="store_true", help="time only the streamed stack: all fits in no GPU")
    parser.add_argument("--only-measured", action="store_true", help="of pipeline: leave the simulated case out")
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=None, help="of figure13 and sweep: only these"
    )
    parser.add_argument(
        "--launched", action="store_true", help="of figure13 and scaling: record no passes as CUDA graphs"
    )
    parser.add_argument("--no-peer", action="store_true", help="of figure13: leave FSDP2 out")
    parser.add_argument("--once", action="store_true", help="of sweep: once, with what processes meet at first")
    parser.add_argument(
        "--states-on-host", action="store_true", help="of sweep: park states in host memory, as a whole 70B model does"
    )
    parser.add_argument("--profile", action="store_true", help="of figure13: say where two more steps of each row go")
    parser.add_argument("--batches", type=int, nargs="+", default=None, help="of figure13: rows of each adapter")
    parser.add_argument("--models", type=Path, default=None, help="a folder that keeps random models for other parts")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape="tiny" if options.tiny or options.part in SIMULATED else "8b")
    module = importlib.import_module(f"benchmarks.several_gpus.{options.part}")
    out = options.out or RESULTS / f"several_gpus_{options.part}{'_tiny' if options.tiny else ''}.json"
    began = time.monotonic()

    def save(part: Part) -> None:
        notes = {**part.notes, "seconds_of_the_measurement": round(time.monotonic() - began, 1)}
        write_result(out, question=module.QUESTION, headline=part.headline, rows=part.rows, notes=notes)

    options.save = save
    part: Part = module.measure(options)
    print_table(part.rows, columns=part.columns)
    print({key: round(value, 4) for key, value in part.headline.items()})
    save(part)


if __name__ == "__main__":
    main()
