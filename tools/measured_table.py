"""Writes the README's table of measured numbers from the result files, so that it can hold no others.

python tools/measured_table.py            rewrites the table
python tools/measured_table.py --check    says whether it is up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
# more headlines than these stay in the file
_SHOWN = 6


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    threads = machine.get("threads", "1")
    return str(machine.get("gpu") or f"CPU, {threads} thread{'' if threads == '1' else 's'}")


def _row(path: Path) -> str:
    result = json.loads(path.read_text(encoding="utf-8"))
    headline = list(result["headline"].items())
    numbers = ", ".join(f"{name} **{value:.4g}**" for name, value in headline[:_SHOWN])
    more = f" and {len(headline) - _SHOWN} more" if len(headline) > _SHOWN else ""
    where = f"[{path.stem}](benchmarks/results/{path.name})"
    return f"| {where}: {result['question']} | {numbers}{more} | {_machine(result)}, {result['date']} |"


def table(results: Path = REPOSITORY / "benchmarks" / "results") -> str:
    """Return the table in Markdown, a row for each result file."""
    rows = [_row(path) for path in sorted(results.glob("*.json"))]
    return "\n".join(["| question | answer | machine |", "|---|---|---|", *rows])


def renewed(text: str) -> str:
    """Return the README with the table of the files that are there now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Rewrite or check; return the exit code."""
    readme = REPOSITORY / "README.md"
    text = readme.read_text(encoding="utf-8")
    if text == renewed(text):
        return 0
    if "--check" in sys.argv:
        print("the README's measured numbers are not those of benchmarks/results; run python tools/measured_table.py")
        return 1
    readme.write_text(renewed(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
