"""``cohort tune`` on a tiny task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    assert "training.seed" in err
    assert "--on-existing overwrite" in err
    code, _, err = cohort(capsys, *words, "--on-existing", "overwrite", "--dataset.max_length", "2")
    assert code == 2
    assert best.read_bytes() == first
    assert cohort(capsys, *words, "--on-existing", "overwrite", "--training.seed", "7")[0] == 0
    assert best.read_bytes() != first
    code, _, err = cohort(capsys, *words, "--on-existing", "replace")
    assert code == 2
    assert "overwrite" in err
