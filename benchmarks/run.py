"""Run the benchmarks that this machine can run, one after the other, and renew the tables of measured numbers.

python -m benchmarks.run                   all that measure the device of this machine
python -m benchmarks.run steps             one folder
python -m benchmarks.run steps.lora_tax    one benchmark
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch

from benchmarks.measure import REPOSITORY

# module in this package: (device it measures, arguments); a question asked of two shapes stands twice
QUESTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("steps.packed_vs_alone_cpu", "cpu", ("--threads", "1")),
    ("steps.packed_vs_peft_cpu", "cpu", ("--threads", "1")),
    ("steps.left_out_rows_cpu", "cpu", ()),
    ("steps.token_budget_cpu", "cpu", ("--threads", "1")),
    ("command.verb_seconds", "cpu", ()),
    ("command.dashboard", "cpu", ()),
    ("service.stored_jobs", "cpu", ()),
    ("serving.tinker_packing", "cpu", ()),
    ("planning.plan_placement", "cpu", ()),
    ("planning.plan_packing", "cpu", ()),
    ("kernels.packed_linear", "cuda", ()),
    ("kernels.attention", "cuda", ()),
    ("kernels.scaling", "cuda", ()),
    ("memory.peak_bytes", "cuda", ()),
    ("memory.gradient_checkpointing", "cuda", ()),
    ("steps.lora_tax", "cuda", ()),
    ("steps.left_out_rows_gpu", "cuda", ()),
    ("kernels.pinned_memory", "cuda", ()),
    ("steps.bridge", "cuda", ()),
    ("steps.hybrid", "cuda", ()),
    ("steps.mixture", "cuda", ()),
    ("steps.client_training", "cuda", ()),
    ("serving.serving", "cuda", ()),
    ("serving.http_streams", "cuda", ()),
    ("steps.lora_variants", "cuda", ()),
    ("steps.accelerated_peft", "cuda", ()),
    ("planning.cost_model", "cuda", ()),
    ("planning.run_tasks", "cuda", ("--gpus", "2")),
    ("steps.packed_vs_peft", "cuda", ("--shape", "1b")),
    ("steps.packed_vs_peft", "cuda", ("--shape", "8b")),
    ("sweeps.sweep_price", "cuda", ("--shape", "1b")),
    ("sweeps.sweep_price", "cuda", ("--shape", "8b")),
    ("sweeps.whole_sweep", "cuda", ("--shape", "1b")),
    ("sweeps.two_sweeps_together", "cuda", ("--shape", "1b")),
    ("sweeps.grpo_sweep_price", "cuda", ("--shape", "1b")),
)


def main() -> int:
    """Run; return 1 if any of them failed."""
    names = sorted({name for name, _, _ in QUESTIONS})
    allowed = sorted({*names, *(name.partition(".")[0] for name in names)})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(allowed)}")
    wanted = parser.parse_args().names
    unknown = [name for name in wanted if name not in allowed]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(allowed)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    failed = []
    for name, needs, arguments in QUESTIONS:
        if not wanted and needs != device:
            why = (
                "this machine has no GPU that torch can use" if needs == "cuda" else "name it to run it on this machine"
            )
            print(f"skipped: {name} {' '.join(arguments)} (measures {needs}; {why})", flush=True)
        if name in wanted or name.partition(".")[0] in wanted or (not wanted and needs == device):
            print(f"\n{name} {' '.join(arguments)}", flush=True)
            command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
            if subprocess.run(command, cwd=REPOSITORY, check=False).returncode != 0:
                failed.append(name)
    subprocess.run([sys.executable, str(REPOSITORY / "tools" / "measured_table.py")], check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
