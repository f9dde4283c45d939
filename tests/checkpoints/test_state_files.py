"""Files of states: secured ones are named by checkpoints, and a damaged one changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.checkpoints.state_files import StateFiles
from cohort.checkpoints.state_memory import StateMemory
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.core.errors import RunStateError
from cohort.runs.directory import RunDirectory
from cohort.training.checkpoint import read_weights

BEST = StoredState(3, StoredStateKind.BEST, 8)


def test_a_state_is_written_once_and_written_again_only_on_demand(tmp_path: Path) -> None:
    memory = StateMemory(device_budget_bytes=0)
    files = StateFiles(RunDirectory(tmp_path), memory=memory)
    memory.put(BEST, torch.ones(2, 4))
    behind = files.spare_files([BEST])
    assert files.is_behind(BEST)
    assert BEST not in files, "no checkpoint may name it yet"
    # a checkpoint comes to name it
    files.start(BEST)
    assert list(files.secure([BEST])) == [BEST.relative_path]
    assert BEST in files
    assert behind.num_files == 1
    memory.put(BEST, torch.zeros(2, 4))
    files.write(BEST)
    assert read_weights(files.path(BEST))[0].sum() == 8, "a file that is there stays"
    files.renew(BEST)
    files.write(BEST)
    assert read_weights(files.path(BEST))[0].sum() == 0
    files.close()


def test_a_checkpoint_with_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    memory = StateMemory(device_budget_bytes=0)
    files = StateFiles(RunDirectory(tmp_path), memory=memory)
    states = [StoredState(3, StoredStateKind.STATE, step) for step in (2, 10, 7)]
    for state in states:
        memory.put(state, torch.full((1, 2), float(state.step)))
        files.write(state)
    assert [state.step for state in files.older(3, at_most=9)] == [7, 2]
    named = files.secure(states)
    with pytest.raises(RunStateError, match="does not match its checksum"):
        files.restore({**named, states[0].relative_path: "0" * 64})
    assert states[0] in files
    assert files.restore({states[1].relative_path: named[states[1].relative_path]}) == [states[1]]
    assert states[0] not in files
    files.remove_except([states[1].relative_path])
    assert [path.name for path in tmp_path.glob("trials/*/*")] == ["state-000010.safetensors"]
    with pytest.raises(RunStateError, match="is missing"):
        files.restore(named)
    files.close()
