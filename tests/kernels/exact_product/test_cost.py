"""The cost is said where a result file has it."""

from __future__ import annotations

import json

from cohort.kernels.exact_product.cost import MEASURED, describe_cost
from tests.conftest import REPOSITORY


def test_a_cost_is_in_percent_and_said_only_where_it_was_measured() -> None:
    found = describe_cost("NVIDIA H100 80GB HBM3")
    assert found == "a step over an 8B model takes longer by 3 % at 1,020 tokens, 3 % at 8,192 tokens"
    assert describe_cost("NVIDIA A100") == "what it costs was not measured on this GPU"


def test_every_cost_is_in_a_result_file() -> None:
    results = [json.loads(path.read_text()) for path in (REPOSITORY / "benchmarks/results").glob("exact_cost*.json")]
    measured = {
        (result["machine"]["gpu"], row["tokens"], round(row["ratio"], 3))
        for result in results
        for row in result["rows"]
        if row["section"] == "step" and row.get("quantization", "none") == "none"
    }
    assert {(gpu, *pair) for gpu, pairs in MEASURED.items() for pair in pairs} <= measured
