"""Results of a finished run that are gone or cut off are found without reading an adapter's weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts
from cohort.runs.results.lost_results import lost_results, names_of_files

FACTS = RunFacts(best_trial_id=1, best_files=("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"))


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run")
    directory.best.mkdir()
    for file in (directory.results_csv, directory.metrics_jsonl, directory.report):
        file.write_text("trial")
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(2)}, directory.best / "adapter_model.safetensors")
    for name in ("adapter_config.json", "tokenizer.json"):
        (directory.best / name).write_text('{"r": 8}')
    return directory


def test_nothing_is_lost_of_a_whole_run(directory: RunDirectory) -> None:
    assert lost_results(directory, FACTS) == ()
    assert names_of_files(directory.best) == list(FACTS.best_files or ())


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(b"\xff" * 40),
    ],
)
def test_a_file_of_the_adapter_that_is_gone_or_cut_off_is_named(
    directory: RunDirectory, name: str, damage: Callable[[Path], object]
) -> None:
    damage(directory.best / name)
    assert lost_results(directory, FACTS) == (f"best/{name}",)


def test_tables_are_named_too_and_a_run_without_a_best_adapter_has_none(directory: RunDirectory) -> None:
    directory.report.unlink()
    (directory.best / "adapter_config.json").unlink()
    assert lost_results(directory, FACTS) == ("best/adapter_config.json", "report.html")
    assert lost_results(directory, RunFacts()) == ("report.html",)
    # a machine that stopped had not brought it to the disk
    directory.results_csv.write_text("")
    assert lost_results(directory, RunFacts()) == ("results.csv", "report.html")
