"""Write the tables of measured numbers from the result files, so that the documents can hold no others.

python tools/measured_table.py            rewrites docs/benchmarks.md and the README's table
python tools/measured_table.py --check    says whether they are up to date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
# more headlines than these stay in the file
_SHOWN = 6
# scripts that have another name than when their result was recorded
_RENAMED = {"memory": "peak_bytes"}

# The README's results: what was measured, the answer with numbers of one result file, what it is compared with.
README_ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "packed_vs_peft_8b",
        "Training 32 adapters at once",
        "**{packed_vs_peft_8b_bs1:.1f}x** faster at batch 1, **{packed_vs_peft_8b_bs8:.1f}x** at batch 8",
        "PEFT, one adapter after the other",
    ),
    (
        "lora_tax",
        "A packed training step",
        "**{lora_tax_8x16:.2f}x** the time with 8 adapters, **{lora_tax_32_mixed:.2f}x** with 32 of mixed ranks",
        "the frozen model's step without adapters",
    ),
    (
        "packed_linear",
        "The packed linear layer alone, 144 shapes",
        "**{least_lead_over_the_best_peer:.2f}x** faster where the lead is smallest",
        "the fastest of PEFT (12 shapes) and three forms in torch",
    ),
    (
        "sweep_price_8b",
        "A sweep of 60 configurations with early exit",
        "costs **{sweep_price_8b_against_table:.2f}** runs where PEFT's step takes 157 ms ({sweep_price_8b:.2f} on the"
        " slow host measured), or **{sweep_price_8b_vs_batch8:.1f}** runs at batch 8",
        "one PEFT run at batch 1, or at batch 8",
    ),
    (
        "early_exit_study",
        "Early exit, on grids that were also trained in full",
        "saves at least **{samples_saved_percent_min:.0f} %** of the samples; the best loss is"
        " **{best_loss_ratio_median:.3f}x** (median), **{best_loss_ratio_max:.3f}x** (worst)",
        "training all configurations in full",
    ),
    (
        "serving_8b",
        "Decoding for 32 adapters in one batch",
        "**{serving_vs_peft_32:.0f}x** the tokens a second; a token takes **{serving_adapter_tax_32:.2f}x** as long as"
        " without adapters",
        "transformers with PEFT's `adapter_names`",
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


def readme_table(results: Path = RESULTS) -> str:
    """Return the README's table in Markdown: few results, each with what it is compared with."""
    rows = ["| measured | result | compared with | machine |", "|---|---|---|---|"]
    for name, what, answer, peer in README_ROWS:
        result = _read(results / f"{name}.json")
        what = f"[{what}](benchmarks/results/{name}.json)"
        rows.append(f"| {what} | {answer.format_map(result['headline'])} | {peer} | {_machine(result)} |")
    return "\n".join(rows)


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
    Path("docs/benchmarks.md"): table,
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
