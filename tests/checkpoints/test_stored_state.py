"""Names of stored states: one file for each trial, kind and step, and files sort as trials and steps do."""

from __future__ import annotations

from cohort.checkpoints.stored_state import StoredState, StoredStateKind


def test_names_are_unique_and_sort_by_trial_kind_and_step() -> None:
    states = [
        StoredState(trial_id, kind, step)
        for trial_id in (2, 10, 123)
        for kind in sorted(StoredStateKind)
        for step in (0, 9, 10, 100_000)
    ]
    paths = [state.relative_path for state in states]
    assert len(set(paths)) == len(paths)
    assert (sorted(states), sorted(paths)) == (states, paths)
    assert [StoredState.of_path(path) for path in paths] == states
    # earlier runs have their states under this name
    assert StoredState(7, StoredStateKind.BEST, 40).relative_path == "trials/0007/best-000040.safetensors"
