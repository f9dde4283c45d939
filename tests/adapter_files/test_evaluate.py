"""Adapters are measured on a file's rows as evaluations of their run measured them, several at once."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.adapter_files import evaluate as evaluate_module
from cohort.adapter_files.base_model import RunBase
from cohort.adapter_files.evaluate import HeldOutEvaluation, evaluate_run, seen_note
from cohort.adapter_files.held_out_rows import read_held_out
from cohort.core.errors import InputError
from cohort.data.loading import load_dataset
from cohort.engine.tune import tune
from cohort.metrics import MetricFailedError
from cohort.models.tokenizer import load_tokenizer
from cohort.runs.reader import RunReader
from tests.adapter_files.runs import base_of
from tests.cli.tiny_task import write_rows
from tests.end_to_end.test_formats import ROWS, TEMPLATE
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was compared at its end on all rows of a file, with two metrics."""
    folder = write_inputs(tmp_path_factory.mktemp("measured"))
    write_rows(folder / "validation.jsonl", count=9)
    task = tiny_task(
        folder,
        dataset={"validation": "validation.jsonl"},
        evaluation={"metric": "exact_match", "metrics": ["token_f1"], "max_new_tokens": 4, "max_examples": 64},
    )
    tune(task, folder / "run")
    return folder / "run"


def measured(run: Path, **settings: Any) -> HeldOutEvaluation:
    return evaluate_run(run, **{"data": run.parent / "validation.jsonl", **settings})


def test_the_rows_of_the_last_comparison_give_its_numbers(run: Path) -> None:
    with RunReader.open(run / "run.db") as reader:
        finals = reader.facts().finals
    assert finals is not None
    found = measured(run)
    assert (found.num_rows, found.num_read) == (9, 9)
    (note,) = found.notes
    assert note.startswith("9 of 9 rows were trained on")
    assert found.metrics == ("exact_match", "token_f1", "loss")
    best, base = found.contenders
    assert finals.base is not None
    assert (best.trial_id, base.trial_id) == (finals.winner.trial_id, None)
    # bit for bit: the same rows in other packs, on a CPU
    assert dict(best.values) == dict(finals.winner.values)
    assert dict(base.values) == dict(finals.base.values)
    assert dict(base.winner_minus) == dict(finals.base.winner_minus)


def test_several_trials_share_the_passes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = measured(run, trials=["all"])
    assert [entry.trial_id for entry in together.contenders] == [0, 1, 2, 3, 4, 5, None]
    # as on a device that holds one adapter at a time
    monkeypatch.setattr(evaluate_module, "free_memory_bytes", lambda _: 1)
    alone = measured(run, trials=["all"])
    assert alone == together
    one = measured(run, trials=["4"], with_base=False)
    (entry,) = one.contenders
    assert dict(entry.values) == dict(together.contenders[4].values)


def test_the_best_is_measured_once(run: Path) -> None:
    with RunReader.open(run / "run.db") as reader:
        best = reader.facts().best_trial_id
    other = 0 if best else 1
    found = measured(run, trials=["best", str(best), str(other)], with_base=False, metrics=["loss"])
    assert [entry.trial_id for entry in found.contenders] == [best, other]
    assert found.metrics == ("loss",)


def test_metrics_of_users_and_choices(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def length(prediction, row):\n    return len(prediction) + row['extra']\n")
    rows = [{"prompt": "1+1=", "completion": "2", "choices": ["2", "3"], "extra": 100 * n} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    found = measured(run, data=Path("rows.jsonl"), metrics=["mine:length", "choice_accuracy"])
    assert found.metrics == ("length", "choice_accuracy", "loss")
    values = found.contenders[0].values
    assert 50 <= values["length"].value <= 60
    assert values["choice_accuracy"].value in (0.0, 1.0)
    (tmp_path / "failing.py").write_text("def strict(prediction, row):\n    return float(prediction)\n")
    with pytest.raises(MetricFailedError, match=r"strict.* raised ValueError.*row .*rows.jsonl:1"):
        measured(run, data=Path("rows.jsonl"), metrics=["failing:strict"])
    with pytest.raises(InputError, match="no 'choices' in the row"):
        measured(run, metrics=["choice_accuracy"])


def test_rows_that_are_left_out_are_counted(run: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "1" * 100, "completion": "2"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = measured(run, data=tmp_path / "rows.jsonl", metrics=["loss"])
    assert (found.num_rows, found.num_read) == (1, 2)
    assert found.notes == ("1 of 2 rows are measured; left out: 1 longer than dataset.max_length",)
    assert found.contenders[0].values["loss"].low is None, "one row says nothing of others"


def test_wrong_names_and_rows_are_refused(run: Path, tmp_path: Path) -> None:
    for name, row in (
        ("chat", {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}),
        ("asked", {"prompt": "1+1="}),
        ("long", {"prompt": "1" * 100, "completion": "2"}),
    ):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"trials": ["9"]}, "'9'; allowed: best, all, or some of 0, 1, 2, 3, 4, 5"),
        ({"trials": ["bets", "-1"]}, "'bets', '-1'"),
        ({"trials": []}, "no trial"),
        ({"metrics": ["exact_mach"]}, "Did you mean exact_match"),
        ({"metrics": ["nowhere.py:f"]}, "'nowhere.py', which does not exist"),
        ({"data": tmp_path / "none.jsonl"}, "command line --data: found .*, which does not exist"),
        ({"data": tmp_path / "asked.jsonl"}, "no 'completion'"),
        ({"data": tmp_path / "chat.jsonl"}, "no 'prompt'"),
        ({"data": tmp_path / "long.jsonl"}, "no usable row"),
    ]
    for settings, found in cases:
        with pytest.raises(InputError, match=found):
            measured(run, **settings)


def test_a_run_without_an_adapter_says_what_is_missing(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(copy / "best")
    for path in copy.glob("trials/*/best-*"):
        path.unlink()
    with sqlite3.connect(copy / "run.db") as database:
        database.execute("DELETE FROM facts WHERE key = 'best_trial_id'")
    with pytest.raises(InputError, match="a run with neither a best adapter nor a checkpoint"):
        measured(copy, data=run.parent / "validation.jsonl")


def test_conversations_are_measured_with_their_template_and_their_trained_turns(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "chat")
    turns = [row["messages"] for row in ROWS["messages"]]
    rows = [{"messages": [*one, *other]} for one, other in zip(turns[::2], turns[1::2], strict=True)]
    (folder / "messages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS["prompt_completion"]))
    # the model's own tokenizer has no template
    dataset = {
        "train": "messages.jsonl", "validation": "messages.jsonl", "chat_template": TEMPLATE, "trained_turns": "last"
    }  # fmt: skip
    task = tiny_task(
        folder, dataset=dataset, search={"space": {"learning_rate": [1e-2]}}, evaluation={"max_examples": 64}
    )
    tune(task, folder / "run")
    found = measured(folder / "run", data=folder / "messages.jsonl", metrics=["exact_match"])
    with RunReader.open(folder / "run" / "run.db") as reader:
        finals = reader.facts().finals
    assert finals is not None
    assert found.contenders[0].values["loss"] == finals.winner.values["loss"]
    with pytest.raises(InputError, match="no 'messages'"):
        measured(folder / "run", data=folder / "text.jsonl")


def test_rewards_of_a_run_that_compares_no_answers_are_refused(run: Path) -> None:
    with pytest.raises(InputError, match="reward_margin of a run with objective sft, which compares no answers"):
        measured(run, metrics=["reward_margin", "exact_match"])


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
