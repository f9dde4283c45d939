"""How soon do the verbs answer that only look: help, schema and the status of a run?

Each command runs in a process of its own; caches of the file system are warm, as they are for a user's second call.
Other work on the machine lengthens the seconds; those of the CPU say what a command takes where it is alone.
The status is that of a run of 60 trials with 12,000 steps in its record.

    python -m benchmarks.command.verb_seconds    # CPU, a minute
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.runs.directory import RunDirectory
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run

COMMANDS = {"help": "--help", "check_help": "check --help", "schema": "check --schema", "status": "status RUN"}


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="times each command is run")
    parser.add_argument("--output", type=Path, default=RESULTS / "verb_seconds.json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run")
        write_synthetic_run(directory.database, SyntheticRun(trials=60, steps=800))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
        # in turn, so that a busy moment of the machine falls on all of them
        for _ in range(arguments.repeats + 1):
            for name, words in COMMANDS.items():
                times[name].append(_seconds(words.replace("RUN", str(directory.root)).split()))
    rows = []
    for name, words in COMMANDS.items():
        # without the first, which fills caches
        seconds, cpu = zip(*times[name][1:], strict=True)
        rows.append(
            {
                "command": f"cohort {words}",
                "median_seconds": round(statistics.median(seconds), 3),
                "fastest_seconds": round(min(seconds), 3),
                "median_cpu_seconds": round(statistics.median(cpu), 3),
            }
        )
    print_table(rows, columns=list(rows[0]))
    headline = {f"{name}_seconds": float(row["median_seconds"]) for name, row in zip(COMMANDS, rows, strict=True)}
    headline |= {
        f"{name}_cpu_seconds": float(row["median_cpu_seconds"]) for name, row in zip(COMMANDS, rows, strict=True)
    }
    # above the number of cores, commands wait for others, and only the seconds of the CPU say what they take
    headline["load_average"] = round(os.getloadavg()[0], 1)
    question = "How soon do the verbs answer that only look: help, schema and the status of a run?"
    write_result(arguments.output, question=question, headline=headline, rows=rows)
    return 0


def _seconds(words: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds, and those of the CPU."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "cohort", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


if __name__ == "__main__":
    sys.exit(main())
