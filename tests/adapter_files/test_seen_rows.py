"""Rows that a run has read are told apart from those that it has not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cohort.adapter_files.base_model import RunBase
from cohort.adapter_files.held_out_rows import read_held_out
from cohort.adapter_files.seen_rows import seen_note
from cohort.data.loading import load_dataset
from cohort.models.tokenizer import load_tokenizer
from tests.adapter_files.runs import base_of
from tests.end_to_end.tiny_tasks import write_inputs


def test_rows_that_the_run_has_read_are_counted(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path)
    tokenizer, base = load_tokenizer(folder / "model"), base_of(folder)
    settings, most = base.task.dataset_settings(), base.task.evaluation.max_examples
    data = load_dataset(settings, tokenizer=tokenizer, evaluation_max_examples=most)
    inputs = replace(base.facts.inputs, data_hash=data.report.data_hash)
    base = replace(base, facts=replace(base.facts, inputs=inputs))
    rows = [{"prompt": rows.prompts[0], "completion": rows.references[0]} for rows in (data.train, data.all_validation)]
    new = {"prompt": "9+9+9=", "completion": "27"}

    def note(*chosen: dict[str, str], of: RunBase = base) -> str | None:
        file = tmp_path / "held.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in chosen))
        held = read_held_out(file, base=of, tokenizer=tokenizer, context=128)
        return seen_note(held.rows, group_size=held.group_size, base=of, tokenizer=tokenizer)

    assert note(new) is None
    assert str(note(rows[0], new)).startswith("1 of 2 rows were trained on, so what is measured here is too good")
    assert str(note(*rows, new)).startswith("1 of 3 rows were trained on and 1 of 3 rows chose the best trial, so ")
    # rows other than those that the run began with get no note
    other = replace(base, facts=replace(base.facts, inputs=replace(inputs, data_hash="0")))
    assert note(rows[0], of=other) is None
