"""The base model of a run: found where it is, refused where it is another one, recorded where it has moved to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from cohort.adapter_files.base_model import find_base, open_base
from cohort.core.errors import InputError
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.reader import RunReader
from tests.adapter_files.runs import write_run
from tests.end_to_end.tiny_tasks import write_inputs


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "inputs"))


def facts_of(run: RunDirectory) -> RunFacts:
    with RunReader.open(run.database) as reader:
        return reader.facts()


def change_a_weight(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] += 0.5
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def test_the_model_is_found_where_the_run_had_it_and_nothing_is_written(folder: Path) -> None:
    run = write_run(folder)
    before = {path: path.read_bytes() for path in (run.database, run.task_file)}
    base = open_base(run)
    assert (base.name, base.directory, base.note) == (str(folder / "model"), folder / "model", None)
    assert open_base(run, model=str(folder / "model")).note is None
    assert {path: path.read_bytes() for path in before} == before


def test_changed_weights_are_refused_with_both_hashes(folder: Path) -> None:
    run = write_run(folder)
    recorded = facts_of(run).inputs.model_hash or ""
    change_a_weight(folder / "model")
    with pytest.raises(InputError) as caught:
        open_base(run)
    (problem,) = caught.value.problems
    assert problem.found.startswith("other weights or another config.json than the run began with")
    assert recorded[:12] in problem.allowed
    assert problem.hint.startswith("Restore the files as they were")


def test_a_tokenizer_or_a_card_is_no_part_of_the_weights(folder: Path) -> None:
    run = write_run(folder)
    (folder / "model" / "README.md").write_text("# edited")
    (folder / "model" / "generation_config.json").write_text("{}")
    assert open_base(run).directory == folder / "model"


def test_a_finished_run_records_where_the_model_has_moved_to(folder: Path) -> None:
    run, moved = write_run(folder), folder.parent / "weights"
    (folder / "model").rename(moved)
    with pytest.raises(InputError, match="Add --model_name_or_path PATH"):
        open_base(run)
    assert open_base(run, model=str(moved)).note is None
    assert facts_of(run).places.base_model == str(moved)
    # from now on without its place
    assert open_base(run).directory == moved


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.INTERRUPTED])
def test_an_unfinished_run_leaves_the_record_to_its_resume(folder: Path, state: RunState) -> None:
    run, copy = write_run(folder, state=state), folder.parent / "copy"
    shutil.copytree(folder / "model", copy)
    base = open_base(run, model=str(copy))
    assert base.directory == copy
    assert f"{copy} is used this time, but not recorded" in str(base.note)
    assert f"`cohort resume {run.root} --model_name_or_path` records it" in str(base.note)
    assert facts_of(run).places.base_model == str(folder / "model")


def test_a_held_lock_is_no_reason_to_stop(folder: Path) -> None:
    run, copy = write_run(folder), folder.parent / "copy"
    shutil.copytree(folder / "model", copy)
    task = run.task_file.read_text()
    with run.lock():
        base = open_base(run, model=str(copy))
    assert base.directory == copy
    assert "not recorded as the place of the base model: " in str(base.note)
    assert run.task_file.read_text() == task


def test_a_run_without_a_hash_takes_any_model_whose_files_are_whole(folder: Path) -> None:
    run = write_run(folder, model_hash=None)
    change_a_weight(folder / "model")
    facts = facts_of(run)
    assert find_base(run, facts=facts).directory == folder / "model"
    (folder / "model" / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json"):
        find_base(run, facts=facts)
