"""``cohort plan``: what is planned, drawn, simulated and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.scheduling.cost.hardware import KNOWN_GPUS
from tests.cli.command import cohort
from tests.cli.tiny_task import TASK, write_tiny_task


@pytest.fixture(autouse=True)
def _no_costs_of_other_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks of different length, one of them urgent, one for a GPU and one for two workers."""
    folder = tmp_path_factory.mktemp("tasks")
    write_tiny_task(folder)
    for name, steps, more in (("short", 40, ""), ("long", 4000, ""), ("urgent", 900, "priority: 2\n")):
        text = TASK.replace("max_steps: 6", f"max_steps: {steps}") + more
        (folder / f"{name}.yaml").write_text(text)
    (folder / "gpu.yaml").write_text(TASK.replace("num_gpus: 0", "num_gpus: auto"))
    (folder / "two.yaml").write_text(TASK.replace("num_gpus: 0", "num_gpus: 2"))
    return folder


def planned(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    code, out, err = cohort(capsys, "plan", *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_plan_is_shown_with_its_drawing_bound_and_sources(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [folder / f"{name}.yaml" for name in ("short", "long", "urgent")]
    code, out, _ = cohort(capsys, "plan", *tasks, "--workers", "2", "-o", tmp_path / "plan.html")
    assert code == 0
    for words in ("short", "long", "urgent", "worker 1", "analytic", "bound", "optimal", "first come", "makespan"):
        assert words in out, words
    assert max(map(len, out.splitlines())) <= 140
    page = (tmp_path / "plan.html").read_text()
    assert page.count('class="bar planned') == 3
    assert "Tasks over time" in page
    assert "http" not in page, "a page works offline"


def test_the_plan_as_json_is_complete(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [folder / f"{name}.yaml" for name in ("short", "long", "urgent")]
    found = planned(capsys, *tasks, "--workers", "2")
    by_name = {task["task"]: task for task in found["tasks"]}
    assert by_name["urgent"]["start_seconds"] == 0, "the urgent one does not wait"
    assert by_name["long"]["end_seconds"] == pytest.approx(found["makespan_seconds"])
    assert found["lower_bound_seconds"] <= found["makespan_seconds"] <= min(found["baselines"].values()) + 1e-9
    (option,) = by_name["short"]["options"]
    assert option["numerics"] is None, "a CPU has one kind"
    parts = ("training", "evaluation", "comparison", "start", "rest")
    assert option["seconds"] == pytest.approx(sum(option[f"{part}_seconds"] for part in parts))
    assert option["cost"] in ("analytic", "scaled", "measured")


def test_hardware_that_is_only_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, folder / "gpu.yaml", "--dry-run", "2x4xH100", "--repeat", "9", "--max-gpus-per-task", "2")
    assert found["is_dry_run"]
    assert [len(gpus) for gpus in found["nodes"].values()] == [4, 4]
    assert len(found["tasks"]) == 9
    assert {option["num_gpus"] for task in found["tasks"] for option in task["options"]} == {1, 2}
    assert all(option["cost"] == "analytic" for task in found["tasks"] for option in task["options"])
    one, two = found["tasks"][0]["options"]
    assert one["numerics"].startswith("fast (what exact costs was not measured for layers as wide as these on H100")
    assert two["numerics"].startswith("fast (strategy: auto may divide the model")
    alone = planned(capsys, folder / "gpu.yaml", "--dry-run", "H200", "--gpus", "3")
    assert alone["nodes"] == {"local": [0, 1, 2]}


def test_a_simulation_ends_trials_early(
    folder: Path, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (folder / "gpu.yaml", "--dry-run", "4xH200", "--repeat", "8", "--simulate")
    full = planned(capsys, *words, "--exits", "1")
    assert full["simulation"]["makespan_seconds"] == pytest.approx(full["makespan_seconds"])
    half = planned(capsys, *words, "--exits", "0.5")
    # exits shorten training, evaluation and comparison, not the start of two tasks on each GPU, nor their results
    option = full["tasks"][0]["options"][0]
    saved = 2 * 0.5 * sum(option[f"{part}_seconds"] for part in ("training", "evaluation", "comparison"))
    assert half["simulation"]["makespan_seconds"] == pytest.approx(full["makespan_seconds"] - saved)
    # every task under its own early exit
    (folder / "exits.yaml").write_text((folder / "gpu.yaml").read_text().replace("early_exit: none\n", ""))
    words = (folder / "exits.yaml", *words[1:])
    curves = planned(capsys, *words, "--exits", repository / "benchmarks/sweeps/curves/gsm8k_stories260K.json.gz")
    assert 0.05 < curves["simulation"]["mean_exit_share"] < 0.5
    assert curves["simulation"]["unfinished"] == []
    alone = planned(capsys, folder / "exits.yaml", "--dry-run", "2xH200", "--simulate")["simulation"]
    both = planned(capsys, folder / "exits.yaml", folder / "gpu.yaml", "--dry-run", "2xH200", "--simulate")
    assert both["simulation"]["mean_exit_share"] == pytest.approx((alone["mean_exit_share"] + 1) / 2)
    # the task without exits ends last; the other one's few evaluations are planned on other rows, a millisecond apart
    assert both["simulation"]["makespan_seconds"] == pytest.approx(both["makespan_seconds"], rel=1e-3)
    code, out, _ = cohort(capsys, "plan", *words, "-o", tmp_path / "page.html")
    assert code == 0
    assert "simulated" in out
    page = (tmp_path / "page.html").read_text()
    assert 'class="bar actual' in page
    assert ", simulated: 0s to " in page
    assert "lower ones simulated" in page
    assert "<th>simulated</th>" in page
    assert ", actual:" not in page, "nothing has happened yet"


def test_packs_are_what_several_gpus_could_do_for_one_task(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (folder / "gpu.yaml", "--dry-run", "2x2xH200", "--repeat", "2", "--packs")
    (found,) = planned(capsys, *words)["packs"]
    assert sorted(trial for pack in found["packs"] for trial in pack["trials"]) == [0, 1, 2, 3]
    assert {gpu for pack in found["packs"] for gpu in pack["gpu_ids"]} <= {0, 1}, "of one machine"
    assert found["bound_seconds"] <= found["makespan_seconds"] * (1 + 1e-9)
    assert found["makespan_seconds"] <= found["one_gpu_training_seconds"] * (1 + 1e-9)
    assert "packs" not in planned(capsys, *words[:-1])
    wide = planned(capsys, *words, "--max-gpus-per-task", "2")["packs"][0]
    assert sorted(trial for pack in wide["packs"] for trial in pack["trials"]) == [0, 1, 2, 3]
    code, out, _ = cohort(capsys, "plan", folder / "short.yaml", folder / "long.yaml", "--workers", "2", "--packs")
    assert code == 0
    for said in (
        "r x batch size",
        "packs on 2 workers end in",
        "above the bound over all packings",
        "begins the next trial instead",
    ):
        assert said in out, said


@pytest.mark.parametrize(
    ("words", "where", "allowed"),
    [
        (("gpu.yaml", "--dry-run", "8xH900"), "--dry-run", "H200"),
        (("gpu.yaml", "--dry-run", "0xH200"), "--dry-run", "1 GPU or more"),
        (("gpu.yaml", "--dry-run", "H200", "--gpus", "0"), "--gpus", "1 or more"),
        (("gpu.yaml", "--dry-run", "8xH200", "--gpus", "4"), "--gpus", "one number of GPUs"),
        (("gpu.yaml", "--dry-run", "8xH200", "--workers", "4"), "--workers", "one of the two"),
        (("gpu.yaml", "--workers", "0"), "--workers", "1 or more"),
        (("gpu.yaml", "--gpus", "0"), "--gpus", "1 or more"),
        (("gpu.yaml", "gpu.yaml", "--workers", "1"), "gpu.yaml", "each task once"),
        (("nowhere.yaml", "--workers", "1"), "nowhere.yaml", ""),
        ((), "cohort plan", "one or more task files"),
        (("short.yaml", "--dry-run", "8xH200"), "num_gpus", "auto | 1"),
        (("two.yaml", "--workers", "1"), "num_gpus", "auto | 1: the GPUs, or CPU workers, of one machine"),
        (("gpu.yaml", "--gpus", "64"), "--gpus", "write --dry-run 8xH200"),
        (("gpu.yaml", "--workers", "1", "--repeat", "0"), "--repeat", "1 or more"),
        (("gpu.yaml", "--workers", "1", "--max-gpus-per-task", "0"), "--max-gpus-per-task", "1 or more"),
        (("gpu.yaml", "--workers", "1", "--exits", "0.5"), "--exits", "--simulate"),
        (("gpu.yaml", "--workers", "1", "-o", "."), "-o .", "a file to write the page to"),
        (("gpu.yaml", "--workers", "1", "-o", "gpu.yaml/plan.html"), "-o gpu.yaml", "a file to write the page to"),
        (("gpu.yaml", "--workers", "1", "--simulate", "--exits", "1.5"), "--exits", "a share"),
        (("gpu.yaml", "--workers", "1", "--simulate", "--exits", "nothing.json"), "--exits", "curves"),
        (("gpu.yaml", "--workers", "1", "--simulate", "--exits", "train.jsonl"), "--exits", "curves"),
    ],
)
def test_wrong_input_is_named_with_its_hint(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    where: str,
    allowed: str,
) -> None:
    monkeypatch.chdir(folder)
    code, out, err = cohort(capsys, "plan", *words)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert where in err
    assert allowed in err


def test_a_task_that_fits_no_gpu_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the largest rank that a task may ask for fits into that of a real one
    monkeypatch.setitem(KNOWN_GPUS, "L4", replace(KNOWN_GPUS["L4"], memory_bytes=5e9))
    large = tmp_path / "large.yaml"
    text = TASK.replace("num_gpus: 0", "num_gpus: auto").replace("r: [2, 4]", "r: [1000000]")
    large.write_text(text.replace("base_model: model", f"base_model: {folder / 'model'}").replace(
        "train: train.jsonl", f"train: {folder / 'train.jsonl'}"))  # fmt: skip
    code, _, err = cohort(capsys, "plan", folder / "gpu.yaml", large, "--dry-run", "2xL4")
    assert code == 2
    assert "large.yaml" in err
    assert "search.space.r" in err
    assert "L4" in err
