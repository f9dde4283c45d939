"""``cohort tune`` on a tiny task."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.core.clock import SystemClock
from cohort.core.statistics.estimates import Estimate
from cohort.machine import cuda_driver
from cohort.machine.compile_ahead import fork_server
from cohort.runs.store import RunStore
from tests.cli.command import cohort


def test_tune_leaves_what_it_promises(folder: Path) -> None:
    run = folder / "run"
    for name in ("task.yaml", "run.db", "report.html", "results.csv", "metrics.jsonl", "best/adapter_config.json"):
        assert (run / name).is_file(), name


def test_the_rows_that_the_seed_put_aside_are_kept(folder: Path) -> None:
    kept = (folder / "run" / "validation.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert len(kept) == 6
    assert all(json.loads(line) in rows for line in kept)


def test_a_directory_with_another_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = cohort(capsys, "tune", str(folder / "task.yaml"), "-o", str(folder / "run"))
    assert code == 2
    assert "already holds another run" in err


def test_an_existing_run_is_continued_or_removed_if_asked(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tune", task, "-o", tmp_path / "run", "--search.space", "{}")
    for on_existing in ("resume", "overwrite"):
        # no run is there yet: both start one
        assert cohort(capsys, *words, "--on-existing", on_existing)[0] == 0
    best = tmp_path / "run" / "best" / "adapter_model.safetensors"
    first, made = best.read_bytes(), (tmp_path / "run" / "run.db").stat().st_ino
    code, out, _ = cohort(capsys, *words, "--on-existing", "resume")
    assert code == 0
    assert "best" in out
    assert (tmp_path / "run" / "run.db").stat().st_ino == made, "a finished run only shows its result"
    # another task: not continued, and removed only once it is known to be right
    code, _, err = cohort(capsys, *words, "--on-existing", "resume", "--training.seed", "7")
    assert code == 2
    assert "command line --training.seed" in err, "not the file, which says nothing of it"
    assert "--on-existing overwrite" in err
    code, _, err = cohort(capsys, *words, "--on-existing", "overwrite", "--dataset.max_length", "2")
    assert code == 2
    assert best.read_bytes() == first
    assert cohort(capsys, *words, "--on-existing", "overwrite", "--training.seed", "7")[0] == 0
    assert best.read_bytes() != first
    code, _, err = cohort(capsys, *words, "--on-existing", "replace")
    assert code == 2
    assert "overwrite" in err


def test_what_compiles_and_the_driver_start_before_the_task_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []
    driver: Future[int] = Future()

    def begin_driver() -> Future[int]:
        begun.append("driver")
        return driver

    def begin_task(path: Path, overrides: Sequence[str], *, driver: object, new_directory: Path | None) -> None:
        begun.append("task")
        given.append((path, tuple(overrides), driver, new_directory))

    given: list[object] = []
    monkeypatch.setattr(fork_server, "begin_fork_server", lambda: begun.append("fork server"))
    monkeypatch.setattr(cuda_driver, "begin_cuda_driver", begin_driver)
    monkeypatch.setattr(sys.modules["cohort.cli.tune"], "begin_task", begin_task)
    path = tmp_path / "none.yaml"
    assert cohort(capsys, "tune", path, "--training.seed", "3")[0] == 2
    assert begun == ["fork server", "driver", "task"]
    assert given == [(path, ("--training.seed", "3"), driver, Path("runs") / "none")]
    given.clear()
    assert cohort(capsys, "tune", path, "-o", tmp_path / "run", "--on-existing", "resume")[0] == 2
    # whatever is there, the run goes on
    assert given == [(path, (), driver, None)]


def test_a_rank_of_a_launcher_begins_no_driver_and_no_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = sys.modules["cohort.cli.tune"]
    drivers: list[object] = []

    def begin_processes() -> None:
        raise AssertionError("ranks share what they compile, and have a GPU each")

    monkeypatch.setattr(
        module, "launched_ranks", lambda: nullcontext(SimpleNamespace(place=SimpleNamespace(num_restarts=0)))
    )
    monkeypatch.setattr(module, "begin_processes", begin_processes)
    monkeypatch.setattr(module, "begin_task", lambda *_, driver, **__: drivers.append(driver))
    cohort(capsys, "tune", tmp_path / "none.yaml")
    assert drivers == [None]


def test_an_adapter_that_is_worse_than_none_is_no_success(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(folder / "run", tmp_path / "run")
    with closing(RunStore.resume(run / "run.db", clock=SystemClock())) as store:
        finals = store.reader.facts().finals
        assert finals is not None
        assert finals.base is not None
        loss = Estimate(value=10.3, low=9.8, high=10.7, num_rows=4)
        worse = replace(finals.base, winner_minus={**finals.base.winner_minus, "loss": loss})
        others = tuple(worse if entry is finals.base else entry for entry in finals.others)
        store.set_facts(finals=replace(finals, others=others))
    for command in (("resume", run), ("tune", folder / "task.yaml", "-o", run, "--on-existing", "resume")):
        code, out, err = cohort(capsys, *command)
        assert code == 3, err
        assert f"no trial beats the base model: the adapter in {run / 'best'} is worse than none" in err
        names = [line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")]
        assert names.index("verdict") < names.index("best")
        assert "nothing beats the base model: the best trial is worse" in out
    # what was asked for is still there
    assert (run / "best" / "adapter_model.safetensors").is_file()
    code, out, _ = cohort(capsys, "resume", run, "--json")
    assert code == 3
    assert "nothing beats the base model: the best trial is worse" in out
