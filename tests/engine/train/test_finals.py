"""The winner is the best on all validation rows, and a kill at any point leaves the same one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.data.packing import SlotSample
from cohort.engine.session import Session
from cohort.engine.session_task import SessionTask
from cohort.engine.train import task_run
from cohort.engine.train.finals import Finals
from cohort.engine.train.open_run import RunConditions, RunOptions
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.tune import resume, tune
from cohort.memory.size_inputs import SizeRequest
from cohort.prepare.preparation import Preparation, prepare
from cohort.runs.facts import RunFacts
from cohort.runs.reader import RunReader
from cohort.runs.results.compute_saved import compute_saved
from cohort.runs.results.results import read_results
from cohort.runs.results.verdicts import comparison_lines
from cohort.runs.store import RunStore
from cohort.training.checkpoint import read_weights
from cohort.training.passes import Passes
from cohort.training.trial import TrialState
from cohort.tuning import finals_plan
from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST
from tests.cli.tiny_task import write_rows
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

# few rows of each evaluation, many for the last comparison; what it may cost is a test of its own
FEW = {"max_examples": 1, "finalists_cost_fraction": 100.0}
SPACE: dict[str, Any] = {
    "training": {"max_steps": 4},
    "lora": {"r": 2},
    "search": {"space": {"learning_rate": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]}},
    "early_exit": "none",
}
# checkpoints that are waited for: a kill after the comparison goes on behind the last step
EACH_STEP = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("finals"))


def facts_of(run: Path) -> RunFacts:
    with RunReader.open(run / "run.db") as reader:
        return reader.facts()


def measured_on_all_rows(preparation: Preparation, run: Path) -> dict[int, float]:
    """Return the loss of every trial's best checkpoint on all validation rows, each measured alone."""
    executor, rows = preparation.build_executor(), preparation.inputs.data.all_validation
    with RunReader.open(run / "run.db") as reader:
        trials = reader.trials()
    found = {}
    specs = {trial.spec.trial_id: trial.spec for trial in preparation.proposals.first}
    for trial in trials:
        assert trial.best_step is not None
        path = run / StoredState(trial.trial_id, StoredStateKind.BEST, trial.best_step).relative_path
        executor.load(specs[trial.trial_id], TrialState(adapter=AdapterState(weights=read_weights(path)[0])))
        losses = executor.evaluate([trial.trial_id], rows=rows, row_ids=range(len(rows)))
        found[trial.trial_id] = losses[trial.trial_id].loss
        executor.drop(trial.trial_id)
    return found


def test_the_winner_is_the_best_on_all_rows_and_not_on_the_few(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(folder, **SPACE, evaluation=FEW)
    tune(task, tmp_path / "run")
    facts = facts_of(tmp_path / "run")
    assert facts.finals is not None
    assert (facts.inputs.evaluation_rows, facts.finals.num_rows, facts.finals.num_available) == (1, 6, 6)
    alone = measured_on_all_rows(prepare(task, clock=SystemClock()), tmp_path / "run")
    assert {entry.trial_id: entry.values["loss"].value for entry in facts.finals.ranked} == alone
    assert facts.best_trial_id == min(alone, key=alone.__getitem__)
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        trials, results = reader.trials(), read_results(reader)
    leader = min(trials, key=lambda trial: trial.best_loss or 0.0)
    assert leader.trial_id != facts.best_trial_id, "one row prefers another trial, so the test can fail"
    assert [entry.trial.trial_id for entry in results.ranked] == sorted(alone, key=alone.__getitem__)
    assert "on all 6 validation rows" in results.ranked[0].why
    card = (tmp_path / "run" / "best" / "README.md").read_text()
    assert f"trial {facts.best_trial_id} " in card


def test_a_kill_within_and_after_it_leaves_the_same_winner(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tiny_task(folder, **SPACE, evaluation=FEW)
    tune(task, tmp_path / "whole")
    expected, measure = outcome_of(tmp_path / "whole"), Finals._measure

    def killed(self: Finals, *args: Any, **named: Any) -> Any:
        measure(self, *args, **named)
        raise KeyboardInterrupt

    kills = {"within": (Finals, "_measure", killed), "after": (task_run, "finish_run", _interrupt)}
    for place, (owner, name, kill) in kills.items():
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, kill)
            with pytest.raises(KeyboardInterrupt):
                tune(task, tmp_path / place)
        assert (facts_of(tmp_path / place).finals is None) == (place == "within")
        resume(tmp_path / place)
        assert outcome_of(tmp_path / place) == expected
        assert facts_of(tmp_path / place).finals == facts_of(tmp_path / "whole").finals


def test_a_comparison_of_states_that_are_trained_again_is_made_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tiny_task(folder, **SPACE, evaluation=FEW)
    with monkeypatch.context() as patched:
        patched.setattr(task_run, "finish_run", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            # an earlier checkpoint is left behind the last one
            tune(task, tmp_path / "run", options=EACH_STEP)
    compared = facts_of(tmp_path / "run").finals
    assert compared is not None
    # killed a moment later, the end had also recorded its choice
    with closing(RunStore.resume(tmp_path / "run" / "run.db")) as store:
        store.set_facts(best_trial_id=compared.winner.trial_id, default_metrics={"loss": 1.0})
    max((tmp_path / "run" / "checkpoints").glob("*.json")).write_text("damaged")
    measure, asked = Finals._measure, list[int]()

    def counted(self: Finals, contenders: Any, **named: Any) -> Any:
        asked.append(len(contenders))
        known = facts_of(tmp_path / "run")
        assert (known.best_trial_id, known.default_metrics) == (None, None), "chosen from states that are gone"
        return measure(self, contenders, **named)

    monkeypatch.setattr(Finals, "_measure", counted)
    resume(tmp_path / "run")
    assert asked == [5]
    assert facts_of(tmp_path / "run").finals == compared, "on a CPU the states are the same again"


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_zero_finalists_leave_the_choice_to_the_evaluations(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, **SPACE, evaluation={**FEW, "finalists": 0}), tmp_path / "run")
    facts = facts_of(tmp_path / "run")
    assert facts.finals is None
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert facts.best_trial_id == min(reader.trials(), key=lambda trial: trial.best_loss or 0.0).trial_id


def test_another_tasks_trials_give_way_to_finalists_and_keep_their_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [tiny_task(folder, **{**SPACE, "training": {"max_steps": steps}}, evaluation=FEW) for steps in (2, 4)]
    evicted: list[int] = []
    evict = Supervisor.evict

    def noted(self: Supervisor, trial_id: int) -> None:
        evicted.append(trial_id)
        evict(self, trial_id)

    monkeypatch.setattr(Supervisor, "evict", noted)
    # room for four trials: once those of the first task have ended, the second task's fill it
    request = SizeRequest(num_slots=4, rank_rows=64)
    preparations = [prepare(task, clock=SystemClock(), request=request) for task in tasks]
    session = Session()
    for number, preparation in enumerate(preparations):
        path = tmp_path / f"shared-{number}"
        conditions = RunConditions(watcher=Interrupting())
        session._hand_in(SessionTask(name=path.name, directory=path, preparation=preparation, conditions=conditions))
    assert session.train() == []
    assert evicted, "the bank was full, so the test can fail"
    for number, task in enumerate(tasks):
        tune(task, tmp_path / f"alone-{number}")
        shared, alone = tmp_path / f"shared-{number}", tmp_path / f"alone-{number}"
        # a larger bank takes its decisions in another order
        outcomes = [{**outcome_of(run), "decisions": None} for run in (shared, alone)]
        assert outcomes[0] == outcomes[1]
        assert facts_of(shared).finals == facts_of(alone).finals


def test_the_winner_the_base_model_and_the_default_are_measured_on_the_test_rows_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(folder / "test.jsonl", count=7)
    sections = {**SPACE, "dataset": {"test": "test.jsonl"}, "training": {"max_steps": 4, "learning_rate": 3e-3}}
    task, run = tiny_task(folder, **sections, evaluation=FEW), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(task_run, "finish_run", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune(task, run, options=EACH_STEP)
    measured = facts_of(run).test
    monkeypatch.setattr(Finals, "_measure", _interrupt)
    resume(run)
    facts = facts_of(run)
    assert facts.test == measured, "a resume measures nothing again"
    assert facts.test is not None
    assert facts.finals is not None
    assert (facts.test.num_rows, facts.test.rows_text) == (7, "all 7 test rows")
    (winner,) = facts.test.ranked
    assert winner.trial_id == facts.best_trial_id == facts.finals.winner.trial_id
    assert {entry.trial_id for entry in facts.test.others} == {facts.task.default_trial_id, None}
    with RunReader.open(run / "run.db") as reader:
        lines = comparison_lines(read_results(reader))
    assert [name for name in lines if name.startswith("test")] == ["test", "test default", "test base"]
    assert "On all 7 test rows, which no earlier step has read:" in (run / "best" / "README.md").read_text()


def test_rows_that_do_not_fit_into_memory_are_left_out_and_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seed in (("long-validation", 0), ("long-test", 1)):
        rows = [{"prompt": f"{seed}+{n}=", "completion": str(seed + n)} for n in range(6)]
        for place in range(4, 5 + seed):
            rows[place]["completion"] = "9" * 50
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = {**SPACE, "dataset": {"validation": "long-validation.jsonl", "test": "long-test.jsonl"}}
    task, watcher = tiny_task(folder, **sections, evaluation=FEW), Interrupting()
    measure = Passes.measure

    def within_memory(self: Passes, entries: Sequence[SlotSample]) -> Tensor:
        if sum(len(entry.sample.tokens) for entry in entries) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        return measure(self, entries)

    monkeypatch.setattr(Passes, "measure", within_memory)
    tune(task, tmp_path / "run", watcher=watcher)
    facts = facts_of(tmp_path / "run")
    assert facts.finals is not None
    assert facts.test is not None
    assert (facts.finals.rows_text, facts.test.rows_text) == ("5 of 6 validation rows", "4 of 6 test rows")
    assert "1 row left out, of 55 tokens or more, which do not fit into memory" in facts.finals.note
    assert [note for note in watcher.notes if "left out" in note] == [
        f"the comparison uses {count} of 6 {split} rows: {rest} left out, of 55 tokens or more, "
        "which do not fit into memory"
        for split, count, rest in (("validation", 5, "1 row"), ("test", 4, "2 rows"))
    ]
    ranked = {entry.trial_id: entry.values["loss"].value for entry in facts.finals.ranked}
    assert facts.best_trial_id == min(ranked, key=ranked.__getitem__)


def test_what_the_comparison_costs_stays_within_its_share_where_rows_are_ragged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so small a model compares everything in a second, whatever its share
    monkeypatch.setattr(finals_plan, "_FREE_FLOPS", {"cpu": 0.0})
    rng = random.Random(0)
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1) * rng.choice([1, 1, 1, 25])} for n in range(40)]
    (folder / "ragged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bound = {"max_examples": 1, "finalists_cost_fraction": 1.0}
    task = tiny_task(folder, **SPACE, dataset={"validation": "ragged.jsonl"}, evaluation=bound)
    tune(task, tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        finals, searched = reader.facts().finals, compute_saved(reader.trials()).cost_tokens
    assert finals is not None
    assert 1 < finals.num_rows < 40, "the bound decides, so the test can fail"
    assert EVALUATION_TOKEN_COST * finals.num_tokens <= searched


def test_a_changed_test_file_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", count=3)
    sections = {**SPACE, "dataset": {"test": str(tmp_path / "test.jsonl")}}
    task = tiny_task(folder, **sections, evaluation=FEW)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "run", watcher=Interrupting(steps=1), clock=TickingClock())
    write_rows(tmp_path / "test.jsonl", count=4)
    with pytest.raises(InputError, match="the test rows changed: 4 rows read") as caught:
        resume(tmp_path / "run")
    assert [str(problem.where).partition(":")[0] for problem in caught.value.problems] == ["dataset.test"]
