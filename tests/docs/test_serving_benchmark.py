"""The measurement of serving runs on a tiny model, so that its time on a GPU is not lost to a typing error."""

from __future__ import annotations

import json
import math
from pathlib import Path

from benchmarks.serving.serving import measure, parser


def test_every_row_and_headline_is_measured_and_written(tmp_path: Path) -> None:
    words = "--shape tiny --batch 2 --adapters 1 2 --prompt 20 --new 5 --rates 200 --requests 3 --peft-new 4"
    out = tmp_path / "serving.json"
    record = measure(parser().parse_args([*words.split(), "--out", str(out)]))
    taxes = {"serving_adapter_tax_1", "serving_adapter_tax_2"}
    assert set(record.headline) == {*taxes, "decode_tokens_per_second", "serving_vs_peft_2"}
    # PEFT's rate is a difference of two times, which on a busy machine may have either sign
    assert math.isfinite(record.headline.pop("serving_vs_peft_2"))
    assert all(value > 0 for value in record.headline.values())
    loops = [row["loop"] for row in record.rows]
    assert loops == ["closed"] * 4 + ["prefill"] + ["open, 200/s"] * 2 + ["peft, adapter_names"]
    assert all(row["tokens_per_second"] > 0 for row in record.rows[:-1])
    written = json.loads(out.read_text(encoding="utf-8"))
    del written["headline"]["serving_vs_peft_2"]
    assert (written["headline"], written["rows"]) == (record.headline, record.rows)
