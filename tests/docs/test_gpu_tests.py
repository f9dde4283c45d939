"""The tool that runs the GPU tests: the order of tests, and what it says of those that failed next to others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import gpu_tests


def test_what_is_named_first_begins_first_and_the_rest_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [SimpleNamespace(nodeid=name) for name in ("a", "long", "b", "wanted", "c")]
    monkeypatch.setenv("COHORT_GPU_TESTS_FIRST", "wanted long")
    gpu_tests.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["wanted", "long", "a", "b", "c"]


def test_only_files_with_gpu_tests_are_imported() -> None:
    files = gpu_tests.files_with_gpu_tests([str(gpu_tests.REPOSITORY / "tests" / "models" / "bridge")])
    assert [Path(file).name for file in files] == ["test_bridge_gpu.py", "test_table_gpu.py"]


def test_a_failure_that_passes_alone_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "collected.json").write_text(json.dumps(["broken", "spoilt", "fine", "never"]))
    ends = [("broken", "failed", "together"), ("spoilt", "failed", "together"), ("fine", "passed", "together")]
    ends += [("broken", "failed", "again"), ("spoilt", "passed", "again")]
    lines = [
        json.dumps({"id": name, "when": "call", "outcome": end, "seconds": 1.0, "stage": stage, "said": "why"})
        for name, end, stage in ends
    ]
    (tmp_path / "reports.jsonl").write_text("\n".join(lines) + "\n")
    assert gpu_tests.failed_ids(tmp_path) == ["broken"]
    found = gpu_tests.outcome(tmp_path, seconds=3.0)
    assert {entry["id"] for entry in found["failed"]} == {"broken"}
    assert [entry["id"] for entry in found["failed_next_to_others_and_passed_alone"]] == ["spoilt"]
    assert (found["passed"], found["not_run"]) == (2, ["never"])
