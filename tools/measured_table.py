"""Write the tables of measured numbers from the result files, so that the documents can hold no others.

python tools/measured_table.py            rewrites docs/benchmarks.md and the README's table
python tools/measured_table.py --check    says whether they are up to date
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
# more headlines than these stay in the file
_SHOWN = 6
# scripts that have another name than when their result was recorded
_RENAMED = {"memory": "peak_bytes"}


@dataclass(frozen=True, kw_only=True)
class ReadmeRow:
    """One row of the README's table.

    Attributes:
        results: Result files that answer it, the best first; the first that is there is shown.
        what: What was measured.
        answers: Parts of the answer, with numbers of :func:`facts`. A part whose numbers the file lacks is left out.
        compared: What it is compared with, in parts of the same kind.
        real: What of it was real: weights, rows, decisions, and what was counted.
    """

    results: tuple[str, ...]
    what: str
    answers: tuple[str, ...]
    compared: tuple[str, ...]
    real: tuple[str, ...]


_SWEEP_IS_REAL = (
    "the whole command: loading, exits by its own decisions, evaluation, files; random weights,"
    " {rows:.0f} rows of GSM8K's lengths and random words"
)
# behind a result's name: the same sweep on another host, in a file that holds others too
_ELSEWHERE = "_eighth_host"
README_ROWS: tuple[ReadmeRow, ...] = (
    ReadmeRow(
        results=("whole_sweep_1b",),
        what="`cohort tune`, 60 configurations of a 1B model",
        answers=("**{sweep_warm_seconds:.0f} s**", "**{sweep_cold_seconds:.0f} s** the first time on a machine"),
        compared=(
            "one PEFT run at batch 1, loading included: {peft_seconds:.0f} s",
            "or {peft_fast_seconds:.0f} s where PEFT waits less for its host",
        ),
        real=(_SWEEP_IS_REAL,),
    ),
    ReadmeRow(
        results=("all_in_price_8b", "whole_sweep_8b", "idle_share_8b"),
        what="`cohort tune`, 60 configurations of an 8B model",
        answers=(
            "**{sweep_warm_seconds:.0f} s**",
            "**{sweep_cold_seconds:.0f} s** the first time on a machine",
            "**{again_seconds:.0f} s**",
            "**{first_seconds:.0f} s** the first time on a machine (torch imported before)",
            "on another host **{sweep_warm_seconds_elsewhere:.0f} s** and **{sweep_cold_seconds_elsewhere:.0f} s**",
        ),
        compared=(
            "one PEFT run at batch 1, loading included: {peft_seconds:.0f} s",
            "or {peft_fast_seconds:.0f} s where PEFT waits less for its host",
            "on the other one {peft_seconds_elsewhere:.0f} s or {peft_fast_seconds_elsewhere:.0f} s",
            "one PEFT run at batch 1: {peft_steps_seconds:.0f} s for its {rows:.0f} steps, and its loading",
        ),
        real=(_SWEEP_IS_REAL,),
    ),
    ReadmeRow(
        results=("early_exit_study",),
        what="What early exit saves and loses",
        answers=(
            "at least **{samples_saved_percent_min:.0f} %** of the training saved",
            "best loss **{best_loss_ratio_median:.3f}x** (median), **{best_loss_ratio_max:.3f}x** (worst)",
            "in small sweeps at most **{best_loss_ratio_small_max:.3f}x**",
        ),
        compared=("all configurations trained to their end",),
        real=(
            "{grids:.0f} grids of 60 trained to their end",
            "a model of 16M parameters",
            "three public sets; decisions replayed on the recorded losses",
        ),
    ),
    ReadmeRow(
        results=("packed_vs_peft_8b",),
        what="Training 32 adapters of an 8B model at once",
        answers=("**{packed_vs_peft_8b_bs1:.0f}x** faster at batch 1", "**{packed_vs_peft_8b_bs8:.1f}x** at batch 8"),
        compared=("PEFT, one adapter after the other",),
        real=("training steps alone; random weights, r {r:.0f}, rows of {length:.0f} random tokens",),
    ),
    ReadmeRow(
        results=("lora_tax",),
        what="What adapters add to a training step of an 8B model",
        answers=("**{lora_tax_8x16:.2f}x** for 8 adapters", "**{lora_tax_32_mixed:.2f}x** for 32 of mixed ranks"),
        compared=("the same step of the frozen model without adapters",),
        real=("training steps alone; random weights and tokens",),
    ),
    ReadmeRow(
        results=("serving_8b",),
        what="Serving 32 adapters of an 8B model in one batch",
        answers=(
            "**{serving_vs_peft_32:.0f}x** the tokens a second",
            "a token takes **{serving_adapter_tax_32:.2f}x** as long as without adapters",
        ),
        compared=("transformers with PEFT's `adapter_names`",),
        real=("the engine without HTTP; random weights, {prompt:.0f} random tokens a prompt, {new:.0f} an answer",),
    ),
)


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    threads = machine.get("threads", "1")
    return str(machine.get("gpu") or f"CPU, {threads} thread{'' if threads == '1' else 's'}")


def script_of(command: str) -> str:
    """Return the name of the benchmark that a recorded command started, as it is called now."""
    found = re.search(r"(\w+)\.py\b|-m [\w.]*?(\w+)(?: |$)", command)
    name = (found[1] or found[2]) if found else ""
    return _RENAMED.get(name, name)


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def _row(path: Path, result: dict[str, Any]) -> str:
    headline = list(result["headline"].items())
    numbers = ", ".join(f"{name} **{value:.4g}**" for name, value in headline[:_SHOWN])
    more = f" and {len(headline) - _SHOWN} more" if len(headline) > _SHOWN else ""
    where = f"[{path.stem}](../benchmarks/results/{path.name})"
    return f"| {where}: {result['question']} | {numbers}{more} | {_machine(result)}, {result['date']} |"


def table(results: Path = RESULTS) -> str:
    """Return a table in Markdown for each folder of benchmarks, a row for each result file."""
    folders = {path.stem: path.parent.name for path in RESULTS.parent.glob("*/*.py")}
    rows: dict[str, list[str]] = {}
    for path in sorted(results.glob("*.json")):
        result = _read(path)
        rows.setdefault(folders.get(script_of(result["command"]), "others"), []).append(_row(path, result))
    head = ["| question | answer | machine |", "|---|---|---|"]
    return "\n\n".join("\n".join([f"### {folder}", "", *head, *rows[folder]]) for folder in sorted(rows))


def page(results: Path = RESULTS) -> str:
    """Return what docs/benchmarks.md holds: which torch the results are of, and their tables."""
    return f"{torch_line(results)}\n\n{table(results)}"


def facts(name: str, results: Path = RESULTS) -> dict[str, float]:
    """Return the numbers of a result file by name: its headline, its notes, and seconds that its rows tell."""
    result = _read(results / f"{name}.json")
    notes = result.get("notes", {})
    found: dict[str, float] = {key: value for key, value in notes.items() if isinstance(value, int | float)}
    found |= result["headline"]
    if "reported" in notes:
        # a set with a grid in which nearly every trial would do is in none of the study's headlines
        grids = [row for row in result["rows"] if row.get("table") == "spreads" and row.get("role") == "reported"]
        left_out = {row["set"] for row in grids if not row.get("counts", True)}
        found["grids"] = sum(row["set"] not in left_out for row in grids)
    for row in result["rows"]:
        what = str(row.get("what", ""))
        if "wall_s" in row and what.startswith("sweep, "):
            found[f"{what.replace('sweep, ', 'sweep_')}_seconds"] = row["wall_s"]
        if "wall_s" in row and what == "PEFT, batch 1":
            found["peft_seconds"] = row["wall_s"]
    for ratio in (key for key in result["headline"] if key.endswith("_cold_against_fast_host")):
        found["peft_fast_seconds"] = found["sweep_cold_seconds"] / found[ratio]
    if name.startswith("all_in_price"):
        found |= _all_in(result)
        if (other := results / f"{name}{_ELSEWHERE}.json").exists():
            elsewhere = _all_in(_read(other), num_rows=found.get("rows"))
            found |= {f"{key}_elsewhere": value for key, value in elsewhere.items()}
    if name.startswith("idle_share"):
        # a sweep by the command line in a process that has imported torch; PEFT's steps were timed apart
        found["first_seconds"] = notes["wall_s"]
        if (results / f"{name}_again.json").exists():
            found["again_seconds"] = _read(results / f"{name}_again.json")["notes"]["wall_s"]
        if (results / "peft_baseline_8b.json").exists() and name == "idle_share_8b":
            step = _read(results / "peft_baseline_8b.json")["headline"]["peft_8b_1x200_ms"]
            found["peft_steps_seconds"] = notes["rows"] * step / 1e3
    return found


def _all_in(result: dict[str, Any], *, num_rows: float | None = None) -> dict[str, float]:
    """Return the seconds of sweeps with ``num_rows``, or the most, on an unquantised base, and of PEFT's script.

    Of several second runs the mean.
    """
    found: dict[str, float] = {}
    sweeps = [row for row in result["rows"] if row["what"].startswith("sweep") and row["format"] == "none"]
    found["rows"] = num_rows or max((row["rows"] for row in sweeps), default=0)
    sweeps = [row for row in sweeps if row["rows"] == found["rows"]]
    if not sweeps:
        return {}
    walls: dict[str, list[float]] = {}
    for row in sweeps:
        which = "sweep_cold_seconds" if row["what"].endswith("first") else "sweep_warm_seconds"
        walls.setdefault(which, []).append(row["wall_s"])
    found |= {which: sum(seconds) / len(seconds) for which, seconds in walls.items()}
    for row in result["rows"]:
        # the script that loads as usual comes first
        if row["what"].startswith("PEFT") and "peft_seconds" not in found:
            found["peft_seconds"] = row["start_s"] + found["rows"] * row["step_ms"] / 1e3
            found["peft_fast_seconds"] = row["start_s"] + found["rows"] * result["notes"]["fast_host_step_ms"] / 1e3
    return found


def _parts(templates: Sequence[str], numbers: Mapping[str, float]) -> str:
    """Return the templates whose numbers are there, joined."""
    named = [(template, {name for _, name, _, _ in Formatter().parse(template) if name}) for template in templates]
    return ", ".join(template.format_map(numbers) for template, names in named if names <= numbers.keys())


def readme_table(results: Path = RESULTS) -> str:
    """Return the README's table in Markdown: few results, with what each is compared with and what of it was real.

    Raises:
        ValueError: no result file of a row is there, or none of the numbers that it shows.
    """
    rows = ["| measured | result | compared with | what was real | machine |", "|---|---|---|---|---|"]
    for row in README_ROWS:
        name = next((name for name in row.results if (results / f"{name}.json").exists()), None)
        numbers = {} if name is None else facts(name, results)
        answer, real = _parts(row.answers, numbers), _parts(row.real, numbers)
        if not answer or not real or name is None:
            found = f"these numbers: {', '.join(numbers)}" if name else f"none of {', '.join(row.results)}"
            raise ValueError(f"the README's row {row.what!r} finds {found}; renew README_ROWS in {Path(__file__).name}")
        what = f"[{row.what}](benchmarks/results/{name}.json)"
        machine = _machine(_read(results / f"{name}.json"))
        rows.append(f"| {what} | {answer} | {_parts(row.compared, numbers)} | {real} | {machine} |")
    return "\n".join([*rows, "", torch_line(results)])


def torch_line(results: Path = RESULTS) -> str:
    """Return with which versions of torch the results on GPUs and those on CPUs were measured, and what is pinned."""
    counts: dict[str, Counter[str]] = {"GPU": Counter(), "CPU": Counter()}
    for path in sorted(results.glob("*.json")):
        result = _read(path)
        version = result["versions"]["torch"].partition("+")[0]
        counts["GPU" if "gpu" in result["machine"] else "CPU"][version] += 1
    said = {
        kind: " and ".join(
            f"{version} ({number} file{'' if number == 1 else 's'})" for version, number in sorted(found.items())
        )
        for kind, found in counts.items()
        if found
    }
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^torch==([\d.]+)", pins, flags=re.MULTILINE)[0]
    which = "; ".join(f"results on {kind}s are of torch {text}" for kind, text in said.items())
    return f"{which[0].upper()}{which[1:]}; `constraints.txt` pins {pinned}, with which the tests run on a CPU."


def finalists_table(results: Path = RESULTS) -> str:
    """Return a row for each sweep of the study of finalists, and for each task whose cost was measured."""
    lines = [
        "| sweep | rows: search, end | led | won | five on all rows | test loss over led: won, five | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _read(results / "finalists.json")["rows"]:
        name = row.get("task") or f"{row['set']}, {row['grid']} grid, seed {row['seed']}"
        five = f"trial {row['five']}" if "five" in row else ""
        ratios = [
            f"{row[f'{which}_test_loss'] / row['leader_test_loss']:.3f}" if row[which] != row["leader"] else "-"
            for which in ("winner", "five")
            if "five" in row
        ]
        test = ", ".join(ratios) if set(ratios) - {"-"} else ""
        used = f"{row['evaluation_rows']}, {row['validation_rows']}"
        cost = f"{row['token_cost_percent']:.1f} %"
        lines.append(f"| {name} | {used} | trial {row['leader']} | trial {row['winner']} | {five} | {test} | {cost} |")
    return "\n".join(lines)


# each document that holds a table between the two marks
TABLES: dict[Path, Callable[[], str]] = {
    Path("README.md"): readme_table,
    Path("docs/benchmarks.md"): page,
    Path("docs/finalists.md"): finalists_table,
}


def renewed(text: str, rows: str) -> str:
    """Return ``text`` with ``rows`` between the two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{rows}\n{END}{after}"


def main() -> int:
    """Rewrite or check; return the exit code."""
    code = 0
    for document, rows in TABLES.items():
        path = REPOSITORY / document
        text = path.read_text(encoding="utf-8")
        new = renewed(text, rows())
        if text == new:
            continue
        if "--check" in sys.argv:
            print(f"{document} differs from benchmarks/results; run python tools/measured_table.py")
            code = 1
        else:
            path.write_text(new, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
