"""What adapters have on the same rows: losses, scores of answers and choices, alike in every company."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cohort.adapter_files.held_out_rows import read_held_out
from cohort.adapter_files.held_out_scores import HeldOutScores
from cohort.adapter_files.pace import BatchProgress
from cohort.adapter_files.run_model import RunModel
from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.metrics import Metric, MetricFailedError, build_metrics
from tests.adapter_files.runs import adapter_of, base_of
from tests.end_to_end.tiny_tasks import write_inputs

ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1), "choices": [str(n + 1), "0"]} for n in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("scores"))
    (folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "plain.jsonl").write_text("".join(f'{{"text": "{n} is a number"}}\n' for n in range(3)))
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> RunModel:
    loaded = RunModel(base_of(folder))
    loaded.hold([adapter_of(loaded.decoder, seed=seed) for seed in range(2)])
    return loaded


def scores(
    loaded: RunModel,
    file: Path,
    *spelled: str,
    metrics: Sequence[Metric] | None = None,
    watched: list[BatchProgress] | None = None,
    **inputs: Any,
) -> HeldOutScores:
    base = base_of(file.parent, **inputs) if inputs else loaded.base
    held = read_held_out(file, base=base, tokenizer=loaded.tokenizer, context=128)
    return HeldOutScores(
        loaded,
        held,
        metrics=build_metrics(spelled) if metrics is None else metrics,
        spelled=spelled,
        max_new_tokens=3,
        watcher=(watched if watched is not None else []).append,
        clock=ManualClock(),
    )


def test_an_adapter_has_the_same_values_alone_and_with_others(loaded: RunModel, folder: Path) -> None:
    measured = scores(loaded, folder / "held.jsonl", "exact_match", "token_f1", "choice_accuracy")
    first, second = loaded.slots
    together = measured.of([second, None, first])
    assert [list(values) for values in together] == [["loss", "exact_match", "token_f1", "choice_accuracy"]] * 3
    for place, slot in enumerate((second, None, first)):
        (alone,) = measured.of([slot])
        assert alone == together[place]
    losses = [values["loss"].value for values in together]
    assert len(set(losses)) == 3
    assert all(math.isfinite(loss) for loss in losses)
    for values in together:
        # a row's answer and the end of the sequence are trained
        assert list(values["loss"].weights) == [2.0, 2.0, 2.0]
        assert set(values["choice_accuracy"].values) <= {0.0, 1.0}


def test_progress_begins_with_the_loss_and_counts_every_answer(loaded: RunModel, folder: Path) -> None:
    watched: list[BatchProgress] = []
    scores(loaded, folder / "held.jsonl", "exact_match", watched=watched).of([*loaded.slots, None])
    assert watched[0].phase == "measuring the loss"
    assert [progress.num_done for progress in watched[1:]] == list(range(1, 10))
    assert {progress.num_rows for progress in watched[1:]} == {9}


def test_without_metrics_nothing_is_generated(loaded: RunModel, folder: Path) -> None:
    watched: list[BatchProgress] = []
    (found,) = scores(loaded, folder / "held.jsonl", watched=watched).of(loaded.slots[:1])
    assert list(found) == ["loss"]
    assert len(watched) == 1


def test_running_text_has_a_loss_and_no_answers(loaded: RunModel, folder: Path) -> None:
    measured = scores(loaded, folder / "plain.jsonl", data_format="text")
    (found,) = measured.of([None])
    assert len(found["loss"].values) == 3


def test_the_frozen_model_needs_no_adapters(loaded: RunModel, folder: Path) -> None:
    (expected,) = scores(loaded, folder / "held.jsonl", "exact_match").of([None])
    bank, slots = loaded.bank, loaded.slots
    loaded.bank, loaded.slots = None, ()
    try:
        (found,) = scores(loaded, folder / "held.jsonl", "exact_match").of([None])
    finally:
        loaded.bank, loaded.slots = bank, slots
    assert found == expected


def test_a_function_that_fails_is_found_before_anything_is_generated(loaded: RunModel, folder: Path) -> None:
    asked: list[str] = []

    def strict(prediction: str, row: Any) -> float:
        asked.append(prediction)
        if not prediction:
            raise MetricFailedError("raised ValueError")
        return 1.0

    metrics = [Metric(name="strict", score=strict, shown="mine.py:strict")]
    with pytest.raises(MetricFailedError, match=r"mine\.py:strict raised ValueError; row .*held\.jsonl:1"):
        scores(loaded, folder / "held.jsonl", "mine.py:strict", metrics=metrics)
    # the expected answer, and an empty one
    assert asked == ["1", ""]


def test_rows_without_choices_are_named(loaded: RunModel, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "bare.jsonl"
    file.write_text('{"prompt": "1+1=", "completion": "2"}\n')
    with pytest.raises(InputError, match="no 'choices' in the row"):
        scores(loaded, file, "choice_accuracy")


@pytest.mark.parametrize("name", ["exact_match", "choice_accuracy"])
def test_metrics_of_answers_are_refused_where_no_row_has_a_prompt(loaded: RunModel, folder: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} with rows that have no prompt"):
        scores(loaded, folder / "plain.jsonl", name, data_format="text", metrics=[])
