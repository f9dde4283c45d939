"""Which changed rows a resume refuses, what it names, and what it only notes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.engine.changed_rows import rewritten_note
from cohort.engine.resume_checks import require_same_inputs
from cohort.prepare.preparation import Preparation, prepare
from cohort.runs.fact_groups import InputFacts
from tests.cli.tiny_task import write_rows
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Inputs with a validation file of its own, of which only some rows are used."""
    folder = write_inputs(tmp_path / "inputs")
    write_rows(folder / "validation.jsonl", count=10)
    return folder


def prepared(folder: Path) -> Preparation:
    dataset = {"validation": "validation.jsonl", "max_train_samples": 12}
    return prepare(tiny_task(folder, dataset=dataset), clock=SystemClock())


def changed_rows(path: Path) -> None:
    """Write one more word into every row, so that those that are used are among them."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    key = next(name for name, value in rows[0].items() if isinstance(value, str))
    path.write_text("".join(json.dumps({**row, key: f"{row[key]} again"}) + "\n" for row in rows))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_only_the_file_that_changed_is_named_with_rows_and_size_of_it(folder: Path, split: str) -> None:
    before, path = prepared(folder).facts, folder / f"{split}.jsonl"
    then = f"{len(path.read_text().splitlines())} rows read in {path.stat().st_size:,} bytes (SHA-256 "
    changed_rows(path)
    with pytest.raises(InputError) as caught:
        require_same_inputs(before, prepared(folder))
    (problem,) = caught.value.problems
    assert str(problem.where) == f"dataset.{split}: {path}"
    assert f"rows read in {path.stat().st_size:,} bytes (SHA-256 " in problem.found
    assert problem.allowed.startswith(then)
    assert f"--dataset.{split} PATH" in problem.hint
    assert not re.search("[0-9a-f]{13}", problem.found + problem.allowed)


def test_both_files_are_named_where_both_changed(folder: Path) -> None:
    before = prepared(folder).facts
    for name in ("train", "validation"):
        changed_rows(folder / f"{name}.jsonl")
    with pytest.raises(InputError) as caught:
        require_same_inputs(before, prepared(folder))
    assert [str(problem.where).partition(":")[0] for problem in caught.value.problems] == [
        "dataset.train",
        "dataset.validation",
    ]


def test_spaces_and_empty_lines_are_no_other_rows(folder: Path) -> None:
    before = prepared(folder)
    path = folder / "validation.jsonl"
    path.write_text("\n\n".join(f"  {line} " for line in path.read_text().splitlines()))
    now = prepared(folder)
    assert now.facts.inputs.validation_fingerprint != before.facts.inputs.validation_fingerprint
    require_same_inputs(before.facts, now)
    assert rewritten_note(before.facts.inputs, now.facts.inputs) == (
        "dataset.validation changed since the run began; the rows it uses are the same"
    )
    assert rewritten_note(now.facts.inputs, now.facts.inputs) is None


def other_rows(inputs: InputFacts) -> InputFacts:
    """Return a record of other rows in the same files."""
    assert inputs.train_input is not None
    assert inputs.validation_input is not None
    return replace(
        inputs,
        train_input=replace(inputs.train_input, rows_hash="other"),
        validation_input=replace(inputs.validation_input, rows_hash="other"),
    )


def test_another_tokenizer_is_named_and_no_file(folder: Path) -> None:
    now = prepared(folder)
    inputs = replace(
        other_rows(now.facts.inputs),
        tokenizer_hash="0" * 64,
        train_fingerprint="other",
        validation_fingerprint="other",
    )
    facts = replace(now.facts, inputs=inputs)
    with pytest.raises(InputError) as caught:
        require_same_inputs(facts, now)
    (problem,) = caught.value.problems
    assert str(problem.where) == f"model_name_or_path: {folder / 'model'}"
    assert problem.found.startswith("the tokenizer or its chat template changed")


def test_other_tokens_of_the_same_file_are_refused(folder: Path) -> None:
    now = prepared(folder)
    read = other_rows(now.facts.inputs).train_input
    inputs = replace(now.facts.inputs, train_fingerprint="other", train_input=read)
    with pytest.raises(InputError, match=r"dataset\.train: .*neither the file nor the tokenizer did"):
        require_same_inputs(replace(now.facts, inputs=inputs), now)


def test_a_row_that_only_the_last_comparison_reads_is_a_difference_to_it_alone(folder: Path) -> None:
    before = prepared(folder)
    lines_used = {int(source.rpartition(":")[2]) for source in before.inputs.data.validation.sources}
    path = folder / "validation.jsonl"
    lines = path.read_text().splitlines()
    unused = min(set(range(1, 11)) - lines_used) - 1
    lines[unused] = lines[unused].replace('"}', ' 7"}')
    path.write_text("\n".join(lines))
    now = prepared(folder)
    with pytest.raises(InputError, match="the validation rows changed"):
        require_same_inputs(before.facts, now)
    # a run that compares nothing at its end reads nothing of that row
    inputs = replace(before.facts.inputs, all_validation_input=None, validation_fingerprint="", train_fingerprint="")
    require_same_inputs(replace(before.facts, inputs=inputs), now)
