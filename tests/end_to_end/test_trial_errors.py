"""An error of one trial: tried again, then the trial has failed, and the others never notice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import cohort.kernels.adamw as adamw
from cohort.adapters.bank import AdapterBank
from cohort.cli.main import main
from cohort.core.errors import RunStateError, StorageFullError
from cohort.engine.train.evaluation import RunEvaluator
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.reader import RunReader
from cohort.training import step_samples
from cohort.training.executor import Executor
from cohort.training.optimizers.kinds.adamw import AdamW
from cohort.training.passes import Passes
from cohort.training.step_samples import Resident
from cohort.tuning.trial_status import TrialStatus
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, host_memory_bytes=0)
# all trials train to the end, so that none depends on how many others there are
SECTIONS: dict[str, Any] = {"early_exit": {"rule": "none"}, "training": {"max_steps": 6}}
VICTIM = 2


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, progress: object) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def warnings(self) -> list[str]:
        # a task of so few rows begins with warnings of its own
        return [note for note in self.notes if note.startswith(("warning: trial ", "warning: these trials "))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    tune(tiny_task(folder, **SECTIONS), folder / "undisturbed", options=OPTIONS)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    return outcome_of(folder / "undisturbed")


def run(folder: Path, tmp_path: Path, **sections: Any) -> Notes:
    watcher = Notes()
    tune(tiny_task(folder, **{**SECTIONS, **sections}), tmp_path / "run", options=OPTIONS, watcher=watcher)
    return watcher


def without(outcome: Outcome, trial_id: int) -> Outcome:
    """Leave one trial out of an outcome, and the choice of the best, which it may have been."""
    keyed = {
        name: {key: v for key, v in outcome[name].items() if key[0] != trial_id} for name in ("steps", "evaluations")
    }
    decisions = [text for text in outcome["decisions"] if json.loads(text)["trial_id"] != trial_id]
    adapters = {
        name: v
        for name, v in outcome["adapters"].items()
        if name.startswith("trials") and f"/{trial_id:04d}/" not in name
    }
    return {**keyed, "decisions": decisions, "adapters": adapters}


Raise = Callable[[pytest.MonkeyPatch, Callable[[int, int], bool]], None]


def in_its_rows(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[int, int], bool]) -> None:
    """Reading the rows of a step raises where ``is_bad`` of trial and steps done."""
    samples = step_samples.samples_of

    def bad_samples(resident: Any, *rest: Any, **options: Any) -> Any:
        if is_bad(resident.spec.trial_id, resident.step):
            raise ValueError("row 7 has\nno token")
        return samples(resident, *rest, **options)

    monkeypatch.setattr(step_samples, "samples_of", bad_samples)


def in_a_pass(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[int, int], bool]) -> None:
    """A micro-batch that holds the trial's samples raises, whatever else is in it."""
    pass_of, step_of = Passes.train, Executor.step
    current: list[Executor] = []

    def watched_step(self: Executor, *rest: Any) -> Any:
        current[:] = [self]
        return step_of(self, *rest)

    def bad_pass(self: Passes, entries: Sequence[Any], *rest: Any, **options: Any) -> Any:
        for resident in current[0]._by_slot():
            present = any(entry.slot == resident.slot for entry in entries)
            if present and is_bad(resident.spec.trial_id, resident.step):
                raise RuntimeError("the pass broke off")
        return pass_of(self, entries, *rest, **options)

    monkeypatch.setattr(Executor, "step", watched_step)
    monkeypatch.setattr(Passes, "train", bad_pass)


def in_its_update(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[int, int], bool]) -> None:
    """The update of all breaks off at the trial, half of whose weights are written."""
    current: list[tuple[AdapterBank, Sequence[Resident]]] = []
    update, step = AdamW.update, adamw.adamw_step

    def watched_update(self: AdamW, bank: AdapterBank, residents: Sequence[Resident]) -> Any:
        current[:] = [(bank, residents)]
        return update(self, bank, residents)

    def bad_step(params_RD: Any, *, slots: Any, **rest: Any) -> Any:
        bank, residents = current[0]
        by_row = {bank.rank_rows(r.slot).start: r for r in residents}
        norms = []
        for slot in slots:
            resident = by_row[slot.row_start]
            if is_bad(resident.spec.trial_id, resident.step):
                params_RD[slot.row_start] += 1.0
                raise FloatingPointError("the update broke off")
            norms.append(step(params_RD, slots=[slot], **rest))
        return torch.cat(norms)

    monkeypatch.setattr(AdamW, "update", watched_update)
    monkeypatch.setattr("cohort.training.optimizers.kinds.adamw.adamw_step", bad_step)


def in_its_evaluation(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[int, int], bool]) -> None:
    """An evaluation that the trial takes part in raises."""
    evaluate = RunEvaluator.__call__

    def bad_evaluate(self: RunEvaluator, steps: Any) -> Any:
        if any(is_bad(trial_id, step) for trial_id, step in steps.items()):
            raise RuntimeError("no answer")
        return evaluate(self, steps)

    monkeypatch.setattr(RunEvaluator, "__call__", bad_evaluate)


PLACES: dict[str, tuple[Raise, str]] = {
    "rows": (in_its_rows, "ValueError: row 7 has no token"),
    "pass": (in_a_pass, "RuntimeError: the pass broke off"),
    "update": (in_its_update, "FloatingPointError: the update broke off"),
    "evaluation": (in_its_evaluation, "RuntimeError: no answer"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_trial_that_fails_three_times_is_failed_and_the_others_go_on(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    expected: Outcome,
    place: str,
) -> None:
    inject, message = PLACES[place]
    inject(monkeypatch, lambda trial_id, step: trial_id == VICTIM and step >= 4)
    watcher = run(folder, tmp_path)
    assert without(outcome_of(tmp_path / "run"), VICTIM) == without(expected, VICTIM)
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        failed = reader.trial(VICTIM)
        assert failed.status is TrialStatus.FAILED
        assert failed.message == f"{message} (tried 3 times)"
        assert failed.steps_done == 4
    assert [note.partition("; ")[2] for note in watcher.warnings] == ["trying again (1 of 2)", "trying again (2 of 2)"]
    assert all(message in note for note in watcher.warnings)
    assert f"trial {VICTIM} stopped at step 4: failed: {message} (tried 3 times)" in watcher.notes
    with pytest.raises(SystemExit) as exit_:
        main(["status", str(tmp_path / "run")])
    assert exit_.value.code == 0
    assert "failed" in capsys.readouterr().out
    assert message in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("place", ["pass", "update"])
def test_an_error_that_does_not_come_again_changes_no_bit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Outcome, place: str
) -> None:
    left = [2]

    def is_bad(trial_id: int, step: int) -> bool:
        if trial_id != VICTIM or step < 3 or not left[0]:
            return False
        left[0] -= 1
        return True

    PLACES[place][0](monkeypatch, is_bad)
    watcher = run(folder, tmp_path)
    assert left == [0]
    assert watcher.warnings
    assert outcome_of(tmp_path / "run") == expected


def test_when_every_trial_fails_the_run_says_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_its_rows(monkeypatch, lambda trial_id, step: step >= trial_id)
    with pytest.raises(
        RunStateError, match=r"all 6 trials failed; trial 0 after step 0: ValueError: row 7 has no token"
    ):
        run(folder, tmp_path)
    assert (tmp_path / "run" / "report.html").is_file()
    with pytest.raises(RunStateError, match="all 6 trials failed"):
        resume(tmp_path / "run")
    with pytest.raises(SystemExit) as exit_:
        main(["resume", str(tmp_path / "run")])
    assert exit_.value.code == 1
    assert "error: all 6 trials failed" in capsys.readouterr().err


def test_what_befalls_all_alike_is_no_trials_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Outcome
) -> None:
    with monkeypatch.context() as patch:
        in_a_pass(patch, lambda trial_id, step: step == 2)
        with pytest.raises(RuntimeError, match="the pass broke off"):
            run(folder, tmp_path)
    resume(tmp_path / "run")
    assert outcome_of(tmp_path / "run") == expected


def test_what_befalls_only_a_pack_is_told_and_changes_no_bit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Outcome
) -> None:
    step = Executor.step

    def only_alone(self: Executor, trial_ids: Sequence[int] | None = None) -> Any:
        if len(trial_ids or ()) > 1:
            raise RuntimeError("too many")
        return step(self, trial_ids)

    monkeypatch.setattr(Executor, "step", only_alone)
    (warning,) = run(folder, tmp_path).warnings
    assert "RuntimeError: too many" in warning
    assert "step one by one" in warning
    assert outcome_of(tmp_path / "run") == expected


def test_a_full_disk_is_no_trials_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StorageFullError("no space left")

    monkeypatch.setattr(step_samples, "samples_of", full)
    with pytest.raises(StorageFullError):
        run(folder, tmp_path, search={"space": {"learning_rate": [1e-3], "r": 2}})


def test_a_damaged_parked_state_is_trained_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"early_exit": {"warmup_fraction": 0.5, "select_fraction": 1 / 3, "rule": "patterns"}}
    tune(tiny_task(folder, **{**SECTIONS, **sections}), tmp_path / "undisturbed", options=OPTIONS)
    damaged: list[Path] = []
    load = Executor.load

    def load_once_damaged(self: Executor, spec: Any, state: Any = None, **options: Any) -> int:
        if not damaged:
            # the first that was parked comes back: the others are still on the state store
            damaged.extend(sorted((tmp_path / "run" / "trials").glob("*/state-*")))
            for path in damaged:
                # a file of its own: the state that is coming in still reads the old one
                content = path.read_bytes()[:-1]
                path.unlink()
                path.write_bytes(content)
        return load(self, spec, state, **options)

    monkeypatch.setattr(Executor, "load", load_once_damaged)
    watcher = run(folder, tmp_path, **sections)
    assert damaged
    assert watcher.warnings
    one, two = outcome_of(tmp_path / "run"), outcome_of(tmp_path / "undisturbed")
    # a trial that is behind ends later
    assert {**one, "decisions": sorted(one["decisions"])} == {**two, "decisions": sorted(two["decisions"])}
