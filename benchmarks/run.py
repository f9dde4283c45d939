"""Runs the benchmarks that this machine can run, one after the other, and renews the README's numbers.

python benchmarks/run.py                     those for the device there is
python benchmarks/run.py packed_vs_alone_cpu  these
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent

# name: (device it measures, arguments); a question asked of two shapes stands twice
QUESTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("packed_vs_alone_cpu", "cpu", ("--threads", "1")),
    ("token_budget_cpu", "cpu", ("--threads", "1")),
    ("plan_placement", "cpu", ()),
    ("plan_packing", "cpu", ()),
    ("packed_linear", "cuda", ()),
    ("attention", "cuda", ()),
    ("scaling", "cuda", ()),
    ("memory", "cuda", ()),
    ("gradient_checkpointing", "cuda", ()),
    ("lora_tax", "cuda", ()),
    ("cost_model", "cuda", ()),
    ("run_tasks", "cuda", ("--gpus", "2")),
    ("packed_vs_peft", "cuda", ("--shape", "1b")),
    ("packed_vs_peft", "cuda", ("--shape", "8b")),
    ("sweep_price", "cuda", ("--shape", "1b")),
    ("sweep_price", "cuda", ("--shape", "8b")),
)


def main() -> int:
    """Run; return 1 if any of them failed."""
    names = sorted({name for name, _, _ in QUESTIONS})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    wanted = parser.parse_args().names
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    failed = []
    for name, needs, arguments in QUESTIONS:
        if not wanted and needs != device:
            why = (
                "this machine has no GPU that torch can use"
                if needs == "cuda"
                else "name it to run it beside the GPU's"
            )
            print(f"skipped: {name} {' '.join(arguments)} (measures {needs}; {why})", flush=True)
        if name in wanted or (not wanted and needs == device):
            print(f"\n{name} {' '.join(arguments)}", flush=True)
            command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
            if subprocess.run(command, check=False).returncode != 0:
                failed.append(name)
    subprocess.run([sys.executable, str(HERE.parent / "tools" / "measured_table.py")], check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
