"""Checkpoints: two are kept, damage to the newest falls back to the other, and what only old ones name is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.checkpoints.checkpoints import Manifest, keep_last_checkpoint, latest_good_checkpoint, save_checkpoint
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import ManualClock
from cohort.core.errors import RunStateError
from cohort.core.events import StepDone
from cohort.runs.directory import RunDirectory
from cohort.runs.records import TrialRecord
from cohort.runs.store import RunStore
from cohort.training.trial import TrialState


class Run:
    """A run of one trial whose weights hold the number of its steps."""

    def __init__(self, root: Path) -> None:
        self.directory = RunDirectory.create(root)
        self.store = RunStore.create(self.directory.database, clock=ManualClock())
        self.store.add_trials([TrialRecord(trial_id=0, parameters={}, planned_steps=10, seed=0)])
        self.states = TrialStateStore(self.directory, memory_budget_bytes=1 << 20)

    def checkpoint(self, step: int) -> Manifest:
        done = StepDone(trial_id=0, step=step, loss=1.0, grad_norm=1.0, learning_rate=1.0, num_tokens=1)
        self.store.append([done])
        tensors = {name: torch.full((2, 3), float(step)) for name in ("exp_avg", "exp_avg_sq")}
        adapter = AdapterState(weights=torch.full((2, 3), float(step)), moments=tensors)
        self.states.put_state(0, TrialState(adapter=adapter, step=step))
        return save_checkpoint(self.store, self.states, directory=self.directory, resident=[0], vacated=[4])

    def restored(self) -> tuple[int | None, list[str]]:
        """Return the steps of the trial's state after going back to the newest good checkpoint."""
        states = TrialStateStore(self.directory, memory_budget_bytes=1 << 20)
        manifest, problems = latest_good_checkpoint(self.store, states, directory=self.directory)
        state = states.state(0)
        assert (manifest is None) is (state is None)
        return None if state is None else int(state.adapter.weights[0, 0]), problems

    def files(self) -> set[str]:
        root = self.directory.root
        found = (*root.glob("checkpoints/*"), *root.glob("trials/0000/*"))
        return {path.relative_to(root).as_posix() for path in found}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def test_a_manifest_comes_back_and_anything_else_is_named() -> None:
    manifest = Manifest(position=7, resident=(2, 0), files={"trials/0000/state-000001.safetensors": "ab"}, vacated=(4,))
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    for content in (b"", b"[]", b'{"position": 7}', b"\x00"):
        with pytest.raises(RunStateError, match="not a checkpoint manifest"):
            Manifest.from_bytes(content)


def test_the_last_two_are_kept_with_the_files_they_name(run: Run) -> None:
    positions = [run.checkpoint(step).position for step in (1, 2, 3)]
    kept = {f"checkpoints/{position:09d}.{ending}" for position in positions[1:] for ending in ("json", "db")}
    assert run.files() == kept | {f"trials/0000/state-{step:06d}.safetensors" for step in (2, 3)}
    assert [record.position for record in run.store.reader.checkpoints()] == positions[1:]
    keep_last_checkpoint(run.store, run.states, directory=run.directory)
    assert run.files() == {f for f in kept if f"{positions[2]:09d}" in f} | {"trials/0000/state-000003.safetensors"}
    assert run.restored() == (3, [])


@pytest.mark.parametrize("damaged", ["manifest", "state", "state missing"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(run: Run, damaged: str) -> None:
    run.checkpoint(1)
    newest = run.checkpoint(2)
    (state,) = [run.directory.root / name for name in newest.files]
    if damaged == "manifest":
        (run.directory.checkpoints / f"{newest.position:09d}.json").write_bytes(b"{}")
    elif damaged == "state":
        state.write_bytes(state.read_bytes()[:-1])
    else:
        state.unlink()
    step, problems = run.restored()
    assert step == 1
    assert len(problems) == 1
    assert ("is missing" if "missing" in damaged else "does not match its checksum") in problems[0]


def test_without_a_good_one_the_run_starts_again(run: Run) -> None:
    assert run.restored() == (None, [])
    manifest = run.checkpoint(1)
    (run.directory.checkpoints / f"{manifest.position:09d}.json").unlink()
    step, problems = run.restored()
    assert step is None
    assert len(problems) == 1
