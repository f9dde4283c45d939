"""The measurement of serving runs on a tiny model, so that its time on a GPU is not lost to a typing error."""

from __future__ import annotations

from benchmarks.serving.serving import measure, parser


def test_every_row_and_headline_is_measured() -> None:
    words = "--shape tiny --batch 2 --adapters 1 2 --prompt 20 --new 5 --rates 200 --requests 3 --peft-new 4"
    headline, rows = measure(parser().parse_args(words.split()))
    assert set(headline) == {"serving_adapter_tax_2", "decode_tokens_per_second", "serving_vs_peft_2"}
    assert all(value > 0 for value in headline.values())
    assert [row["loop"] for row in rows] == ["closed"] * 4 + ["open, 200/s"] * 2 + ["prefill", "peft, adapter_names"]
    assert all(row["tokens_per_second"] > 0 for row in rows)
