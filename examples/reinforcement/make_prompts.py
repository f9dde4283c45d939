"""Write the prompts of the example: the quickstart's notes, each with the number of things that its guest orders.

    python examples/reinforcement/make_prompts.py --out DIR

The answers are for the reward alone: no model is ever shown one. The same rows come out on every machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

QUICKSTART = Path(__file__).resolve().parent.parent / "quickstart"
MOST = {"train": 320, "validation": 64, "test": 100}


def prompts_of(split: str) -> list[dict[str, str]]:
    """Return the prompts of one of the quickstart's files; its ticket ends in the number of things."""
    lines = (QUICKSTART / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()[: MOST[split]]
    rows = [json.loads(line) for line in lines]
    return [{"prompt": row["prompt"], "answer": row["completion"].rpartition("= ")[2]} for row in rows]


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for split in MOST:
        text = "".join(json.dumps(row) + "\n" for row in prompts_of(split))
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
