"""When a measured cost of exact numerics holds, what it is called, and that a result file has each of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from benchmarks.llama_shapes import SHAPES
from cohort.scheduling.cost.exact_ratios import (
    MEASURED,
    MOST_RATIO,
    ExactStep,
    LayerWidths,
    described_ratios,
    gpu_kind,
    is_cheap,
    steps_alike,
    steps_of,
)
from tests.conftest import REPOSITORY

WIDTHS = LayerWidths(hidden_size=4096, intermediate_size=14336)
STEP = ExactStep(gpu="H200", widths=WIDTHS, tokens=1020, ratio=1.01)


def test_a_cost_holds_for_layers_nearly_as_wide() -> None:
    def found(**changed: int) -> int:
        return len(steps_alike([STEP], gpu="H200", widths=replace(WIDTHS, **changed), quantization="none"))

    assert found() == found(intermediate_size=12288) == 1
    # other widths of the stream, a far wider or narrower MLP, and rows that Hopper's product cannot read
    assert not any(found(hidden_size=size) for size in (2048, 3584))
    assert not any(found(intermediate_size=size) for size in (11008, 18944, 14337))
    assert not steps_alike([STEP], gpu="H100", widths=WIDTHS, quantization="none")
    assert not steps_alike([STEP], gpu="H200", widths=WIDTHS, quantization="fp8")


def test_the_dearest_step_decides() -> None:
    dear = replace(STEP, tokens=8192, ratio=MOST_RATIO + 0.01)
    assert is_cheap([STEP])
    assert not is_cheap([STEP, dear])
    assert not is_cheap([])
    assert described_ratios([dear, STEP]) == "a step takes up to 6 % longer, measured at 1,020 to 8,192 tokens"
    # what is too dear does not read as if it were allowed
    assert described_ratios([replace(STEP, ratio=1.054)]).startswith("a step takes up to 5.4 % longer")
    assert described_ratios([replace(STEP, ratio=0.98)]) == "a step takes no longer, measured at 1,020 tokens"


def test_steps_with_dropout_tell_of_trials_that_may_have_it_alone() -> None:
    launched = replace(STEP, tokens=8192, ratio=1.2, launched=True)
    assert steps_of([STEP, launched], launched=False) == (STEP,)
    assert steps_of([STEP, launched], launched=True) == (STEP, launched)


def test_every_cost_is_in_a_result_file() -> None:
    measured = set()
    for path in (REPOSITORY / "benchmarks/results").glob("exact_cost*.json"):
        result = json.loads(path.read_text())
        gpu = gpu_kind(result["machine"]["gpu"])
        for row in result["rows"]:
            if row["section"] == "step":
                shape = SHAPES[named.group(1) if (named := re.search(r"--shape (\S+)", result["command"])) else "8b"]
                widths = LayerWidths(hidden_size=shape["hidden_size"], intermediate_size=shape["intermediate_size"])
                kept = row.get("quantization", "none")
                # passes with dropout were not recorded at first
                launched = row["pack"].endswith("_dropout") and "exact" not in row.get("recorded", ())
                measured.add((gpu, widths, kept, row["tokens"], round(row["ratio"], 3), launched))
    assert {(s.gpu, s.widths, s.quantization, s.tokens, s.ratio, s.launched) for s in MEASURED} <= measured
