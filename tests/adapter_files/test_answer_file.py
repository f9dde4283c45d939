"""A file of prompts is answered as each prompt alone would be, and after a kill with the same bytes."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.adapter_files import run_model
from cohort.adapter_files.answer_file import AnsweredFile, answer_file
from cohort.adapter_files.generate import GenerationSettings, generate_from_run
from cohort.adapter_files.pace import BatchProgress
from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.engine.tune import tune
from cohort.ranks import answers
from cohort.serving.generate import stream
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

SETTINGS = GenerationSettings(max_new_tokens=6)
PROMPTS = [f"{a}+{b}=" for a in range(4) for b in range(3)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("answered"))
    tune(tiny_task(folder, search={"space": {"learning_rate": [1e-2, 3e-2]}}, early_exit="none"), folder / "run")
    return folder / "run"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text, "id": place}) + "\n" for place, text in enumerate(PROMPTS)))
    return path


def answered(run: Path, prompts: Path, **settings: Any) -> AnsweredFile:
    settings = {"settings": SETTINGS, "output": prompts.parent / "answers.jsonl", **settings}
    return answer_file(run, source=prompts, **settings)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class StopAfter:
    """Presses Ctrl-C when so many prompts are answered; keeps what it was told."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.seen: list[BatchProgress] = []

    def __call__(self, progress: BatchProgress) -> None:
        self.seen.append(progress)
        if self.count is not None and progress.num_done >= self.count:
            raise KeyboardInterrupt


def test_answers_stand_with_their_rows_in_the_order_of_the_file(run: Path, prompts: Path) -> None:
    found = answered(run, prompts)
    rows = rows_of(found.path)
    assert [row["id"] for row in rows] == list(range(len(PROMPTS)))
    alone = generate_from_run(run, PROMPTS[5:6], settings=SETTINGS).answers
    assert rows[5]["generated"] == alone[0]
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"}
    assert (found.num_rows, found.num_resumed) == (len(PROMPTS), 0)
    assert sorted(path.name for path in prompts.parent.iterdir()) == ["answers.jsonl", "prompts.jsonl"]


def test_an_interrupted_file_goes_on_to_the_same_bytes(run: Path, prompts: Path) -> None:
    whole = answered(run, prompts, output=prompts.parent / "whole.jsonl").path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        answered(run, prompts, watcher=StopAfter(5))
    output, partial = prompts.parent / "answers.jsonl", prompts.parent / "answers.jsonl.partial"
    assert not output.exists(), "nothing half-written has the name of the result"
    # as a kill in the middle of a write leaves it
    with partial.open("ab") as stream:
        stream.write(b'{"row": 11, "gener')
    with pytest.raises(InputError, match="answers to other prompts, or with other settings or weights"):
        answered(run, prompts, settings=replace(SETTINGS, max_new_tokens=5))
    with partial.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is writing"):
            answered(run, prompts)
    found = answered(run, prompts)
    assert found.num_resumed >= 5
    assert output.read_bytes() == whole
    assert not partial.exists()


def test_progress_tells_the_time_left(run: Path, prompts: Path) -> None:
    clock, watcher = ManualClock(), StopAfter()

    def watch(progress: BatchProgress) -> None:
        watcher(progress)
        clock.advance(2.0)

    answered(run, prompts, watcher=watch, clock=clock)
    assert [progress.phase for progress in watcher.seen[:2]] == ["loading", "answering"]
    half = next(progress for progress in watcher.seen if progress.num_done == len(PROMPTS) // 2)
    # two seconds a prompt, and the first report before the first one
    assert half.seconds_left == pytest.approx(half.elapsed_seconds)
    assert watcher.seen[-1].seconds_left == 0.0


def test_wrong_files_are_named_before_the_model_is_loaded(run: Path, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "taken.jsonl").write_text('{"prompt": "1", "generated": "2"}\n')
    (tmp_path / "broken.jsonl").write_text('{"prompt": "1"}\n{"prompt": \n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "prompts.txt").write_text("1+1=\n")
    cases = [
        (tmp_path / "prompt.jsonl", "Did you mean 'prompts.jsonl'"),
        (tmp_path, "Name one file in it"),
        (tmp_path / "prompts.txt", "Convert the file to JSON lines"),
        (tmp_path / "empty.jsonl", "no rows"),
        (tmp_path / "broken.jsonl", "broken.jsonl:2: found bad JSON"),
        (tmp_path / "taken.jsonl", "a column generated already"),
    ]
    for source, words in cases:
        with pytest.raises(InputError, match=words):
            answered(run, source, output=tmp_path / "new.jsonl")
    with pytest.raises(InputError, match="a file that exists"):
        answered(run, prompts, output=tmp_path / "there.jsonl")
    with pytest.raises(InputError, match="which is no directory"):
        answered(run, prompts, output=tmp_path / "nowhere" / "new.jsonl")
    with pytest.raises(InputError, match="found a directory"):
        answered(run, prompts, output=tmp_path)
    # root may write everywhere but there
    with pytest.raises(InputError, match=r"/proc/new\.jsonl: found a (path where|file in /proc)"):
        answered(run, prompts, output=Path("/proc/new.jsonl"))
    assert not (tmp_path / "new.jsonl.partial").exists()


def test_rows_that_cannot_be_asked_are_all_named(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    rows = [{"prompt": "1+1="}, {"question": "1+1="}, {"prompt": "1" * 500}, {"prompt": ""}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError) as caught:
        answered(run, source)
    assert [str(problem.where).rpartition(":")[2] for problem in caught.value.problems] == ["2", "3", "4"]
    assert "the model's context is 128" in caught.value.problems[1].allowed


def test_a_fault_of_many_rows_is_told_once(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "questions.jsonl"
    source.write_text("".join(json.dumps({"question": text}) + "\n" for text in PROMPTS))
    with pytest.raises(InputError) as caught:
        answered(run, source)
    (problem,) = caught.value.problems
    assert (str(problem.where), len(PROMPTS)) == (f"{source}:1-12", 12)
    # every row is answered, so there is no key that leaves one out
    assert "on_bad_rows" not in problem.hint


def test_other_forms_of_rows_and_the_base_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,completion\n1+1=,2\n2+2=,4\n")
    found = answered(run, tmp_path / "rows.csv", output=tmp_path / "a.jsonl", settings=replace(SETTINGS, use_base=True))
    assert [row["completion"] for row in rows_of(found.path)] == ["2", "4"]
    alone = generate_from_run(run, ["1+1="], settings=replace(SETTINGS, use_base=True)).answers
    assert rows_of(found.path)[0]["generated"] == alone[0]


def test_one_pass_that_runs_out_of_memory_costs_no_answer(
    run: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = answered(run, prompts, output=prompts.parent / "whole.jsonl").path.read_bytes()
    budgets: list[int] = []

    def short(*arguments: Any, token_budget: int, **named: Any) -> Any:
        budgets.append(token_budget)
        for count, picked in enumerate(stream(*arguments, token_budget=token_budget, **named)):
            if len(budgets) == 1 and count == 10:
                raise MemoryError("out of memory")
            yield picked

    monkeypatch.setattr(run_model, "stream", short)
    monkeypatch.setattr(answers, "is_out_of_memory", lambda error: isinstance(error, MemoryError))
    assert answered(run, prompts).path.read_bytes() == whole
    assert len(budgets) == 2
    assert budgets[1] == budgets[0] // 2
