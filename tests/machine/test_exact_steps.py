"""What this machine measured comes before the package's table; a damaged file is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cohort.machine import exact_steps
from cohort.machine.exact_steps import keep_exact_steps, known_exact_steps, own_exact_steps
from cohort.scheduling.cost.exact_ratios import MEASURED, ExactStep, LayerWidths

WIDTHS = LayerWidths(hidden_size=4096, intermediate_size=14336)
STEP = ExactStep(gpu="H200", widths=WIDTHS, tokens=1020, ratio=1.2)


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path))
    return tmp_path


def known(widths: LayerWidths = WIDTHS) -> tuple[ExactStep, ...]:
    return known_exact_steps(gpu="H200", widths=widths, quantization="none")


def without_dropout(widths: LayerWidths = WIDTHS) -> list[ExactStep]:
    return [step for step in known(widths) if not step.launched]


def test_what_was_measured_here_comes_first() -> None:
    table = tuple(step for step in MEASURED if (step.gpu, step.widths, step.quantization) == ("H200", WIDTHS, "none"))
    assert known() == table != ()
    path = keep_exact_steps([STEP, replace(STEP, tokens=8192)])
    near = LayerWidths(hidden_size=4096, intermediate_size=12288)
    keep_exact_steps([replace(STEP, widths=near, tokens=8192, ratio=1.1)])
    assert [step.tokens for step in without_dropout()] == [1020, 8192]
    assert [step.ratio for step in without_dropout(near)] == [1.1]
    assert own_exact_steps("H100") == ()
    # measured again: the file is replaced
    assert keep_exact_steps([replace(STEP, tokens=8192, ratio=1.0)]) == path
    assert [step.ratio for step in without_dropout()] == [1.0]


def test_the_table_tells_of_larger_steps_than_were_measured_here() -> None:
    larger = [step for step in known() if step.tokens > STEP.tokens]
    keep_exact_steps([STEP])
    assert known() == (STEP, *larger)


def test_what_was_measured_here_recorded_leaves_the_table_its_launched_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = replace(STEP, tokens=512, launched=True)
    monkeypatch.setattr(exact_steps, "MEASURED", (STEP, launched))
    keep_exact_steps([replace(STEP, tokens=8192)])
    assert [(step.tokens, step.launched) for step in known()] == [(8192, False), (512, True)]
    keep_exact_steps([replace(STEP, tokens=8192), replace(launched, ratio=1.3)])
    assert [(step.tokens, step.ratio) for step in known()] == [(8192, 1.2), (512, 1.3)]


@pytest.mark.parametrize("content", ["{", "[1]", '[{"gpu": "H200"}]', '{"widths": 3}'])
def test_a_damaged_file_counts_as_absent(content: str) -> None:
    path = keep_exact_steps([STEP])
    path.write_text(content)
    assert own_exact_steps("H200") == ()
    path.write_text(keep_exact_steps([STEP]).read_text().replace("1.2", "-1"))
    assert own_exact_steps("H200") == ()


def test_steps_with_dropout_of_an_earlier_version_are_launched_ones() -> None:
    path = keep_exact_steps([STEP, replace(STEP, tokens=512, launched=True)])
    path.write_text(path.read_text().replace('"launched"', '"dropout"'))
    assert [(step.tokens, step.launched) for step in own_exact_steps("H200")] == [(STEP.tokens, False), (512, True)]
