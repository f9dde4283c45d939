"""Write the tuning task of the quickstart: a guest's note in, a kitchen ticket out.

    python examples/quickstart/make_task.py --out DIR [--seed 0]

writes ``train.jsonl``, ``validation.jsonl`` and ``test.jsonl`` (prompt, completion). The same seed gives the same bytes
on every machine; no note and no order is in two of the files.

    Please bring two pies with one soup to Mia, who sits at table seven.
    Table 7: 2 pie + 1 soup = 3
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from cafe import Order, draw_order, render_note

__all__ = ["SPLIT_ROWS", "render_ticket", "task_rows", "write_task"]

SPLIT_ROWS = {"train": 960, "validation": 64, "test": 200}


def render_ticket(order: Order) -> str:
    """The kitchen's house format: table, then count and singular item in the order of mention, then the total."""
    lines = " + ".join(f"{line.count} {line.item}" for line in order.lines)
    return f"Table {order.table}: {lines} = {order.total}"


def task_rows(*, seed: int) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each split; every order is used once, so the splits are disjoint."""
    rng = Random(f"task {seed}")
    seen: set[Order] = set()
    splits: dict[str, list[dict[str, str]]] = {}
    for split, count in SPLIT_ROWS.items():
        rows: list[dict[str, str]] = []
        while len(rows) < count:
            order = draw_order(rng, num_lines=2)
            if order not in seen:
                seen.add(order)
                rows.append({"prompt": render_note(order, rng) + "\n", "completion": render_ticket(order)})
        splits[split] = rows
    return splits


def write_task(folder: Path, *, seed: int) -> list[Path]:
    """Write one JSONL file per split into ``folder`` (made if need be) and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for split, rows in task_rows(seed=seed).items():
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8", newline="\n")
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the three files")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for path in write_task(arguments.out, seed=arguments.seed):
        print(path)


if __name__ == "__main__":
    main()
