"""What the bits of a step depend on: each operation on random packs, the same rows with other neighbours.

``python -m benchmarks.numerics.neighbours [--sections product term inside rows special step] [--out RESULT.json]
[--tiny]``.
An operation runs on the rows of one trial alone and again among others; a row of the result names the operation, its
form, what changed around the trial, and the share of the trial's entries whose bits changed. ``--tiny`` tries the
script out on any device; a CPU takes Triton's interpreter (``TRITON_INTERPRET=1``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.numerics.frozen_products import product_rows
from benchmarks.numerics.lora_terms import term_rows
from benchmarks.numerics.places import Place, Row
from benchmarks.numerics.row_operations import row_rows
from benchmarks.numerics.special_forms import special_rows
from benchmarks.numerics.terms_inside import inside_rows
from benchmarks.numerics.whole_steps import step_rows
from cohort.core.numerics import Numerics

QUESTION = "Which operations of a step give a trial the same bits whatever is packed with it?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "neighbours.json")
    parser.add_argument("--sections", nargs="*", default=["product", "term", "inside", "rows", "special", "step"])
    parser.add_argument("--tiny", action="store_true", help="small sizes on any device")
    parser.add_argument("--numerics", nargs="*", default=["fast", "exact"], help="of the section step")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    place = Place(device=device, dtype=dtype, tiny=options.tiny or device == "cpu")
    sections: dict[str, Callable[[], Iterator[Row]]] = {
        "product": lambda: product_rows(place),
        "term": lambda: term_rows(place),
        "inside": lambda: inside_rows(place),
        "rows": lambda: row_rows(place),
        "special": lambda: special_rows(place),
        "step": lambda: step_rows(place, numerics=[Numerics(name) for name in options.numerics]),
    }
    found: list[Row] = []
    taken: dict[str, float] = {}
    for name in options.sections:
        begun = time.perf_counter()
        try:
            for row in sections[name]():
                found.append({"section": name, **row})
                if name in ("special", "step"):
                    print({**row, "seconds": round(time.perf_counter() - begun, 1)}, flush=True)
                    write_result(options.out, question=QUESTION, headline=_headline(found, taken), rows=found)
        except Exception as error:  # the other sections are worth having
            found.append({"section": name, "operation": name, "error": f"{type(error).__name__}: {error}"[:600]})
        taken[name] = round(time.perf_counter() - begun, 1)
        write_result(options.out, question=QUESTION, headline=_headline(found, taken), rows=found)
    columns = ("section", "operation", "form", "rank", "dropout", "beside", "changed", "first_other_loss", "error")
    print_table(found, columns=columns)
    print(taken)


def _headline(rows: Sequence[Row], taken: dict[str, float]) -> dict[str, float]:
    shares = [row["changed"] for row in rows if "changed" in row]
    exact = [row for row in rows if row["section"] == "step" and row.get("form") == "exact" and "changed" in row]
    others = [row for row in exact if row["changed"] > 0 or row["first_other_loss"] is not None]
    return {
        "checks": len(shares),
        "checks_that_changed": sum(share > 0 for share in shares),
        "exact_steps_checked": len(exact),
        "exact_steps_that_changed": len(others),
    } | {f"seconds_{name}": value for name, value in taken.items()}


if __name__ == "__main__":
    main()
