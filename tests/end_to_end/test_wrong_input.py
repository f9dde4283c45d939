"""Wrong input through the real command line: exit code 2, place, find and hint, no traceback, nothing left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cohort.cli.main import main
from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.tiny_tasks import tiny_data, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def folder(inputs: Path, tmp_path: Path) -> Path:
    """Inputs that a test may spoil."""
    return Path(shutil.copytree(inputs, tmp_path / "folder"))


class Refused:
    """What the command said and left when it was given a task."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], verb: str, *words: str) -> None:
        before = set(folder.rglob("*"))
        arguments = [verb, str(folder / "task.yaml"), *words]
        if verb == "tune" and "-o" not in words:
            arguments += ["-o", str(folder / "run")]
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        shown = capsys.readouterr()
        self.code, self.text = caught.value.code, shown.err
        assert "Traceback" not in shown.err + shown.out
        assert set(folder.rglob("*")) == before, "something was left behind"


def write_task(folder: Path, **sections: Any) -> None:
    yaml = YAML()
    with (folder / "task.yaml").open("w") as stream:
        yaml.dump(tiny_data(**sections), stream)


@pytest.fixture(params=["tune", "check"])
def verb(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def refused(folder: Path, capsys: pytest.CaptureFixture[str], verb: str, *expected: str, hint: str) -> str:
    """Assert that both verbs refuse the task with exit code 2, naming ``expected`` and how to hint it."""
    found = Refused(folder, capsys, verb)
    assert found.code == 2, found.text
    for part in (*expected, hint):
        assert part in found.text, f"{part!r} is not in:\n{found.text}"
    return found.text


def test_an_unknown_key(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder, training={"learing_rate": 1e-3})
    line = 1 + (folder / "task.yaml").read_text().splitlines().index("  learing_rate: 0.001")
    expected = f"{folder / 'task.yaml'}:{line}: training.learing_rate"
    text = refused(folder, capsys, verb, expected, hint="Did you mean training.learning_rate?")
    assert "1 problem in the input" in text


def test_empty_data(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder)
    (folder / "train.jsonl").write_text("")
    refused(folder, capsys, verb, str(folder / "train.jsonl"), "no rows", hint="Add rows to it, or name another file.")


def test_bad_json_on_line_17(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder)
    rows = (folder / "train.jsonl").read_text().splitlines()
    rows[16] = '{"prompt": "1+1=", "completion": '
    (folder / "train.jsonl").write_text("\n".join(rows))
    refused(
        folder, capsys, verb, f"{folder / 'train.jsonl'}:17", "JSON", hint="Write one whole JSON object on this line."
    )


def test_a_row_without_an_answer(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder)
    with (folder / "train.jsonl").open("a") as stream:
        stream.write('{"prompt": "1+1="}\n{"prompt": "1+2=", "completion": ""}\n')
    text = refused(
        folder, capsys, verb, "train.jsonl:25", "train.jsonl:26", hint="Add 'completion' to the row, or remove the row."
    )
    assert "completion" in text


def test_a_share_that_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder, dataset={"validation": 0.001})
    refused(folder, capsys, verb, "task.yaml:4: dataset.validation", "0.001", hint="name a validation file.")


def test_an_unknown_target_module(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder, lora={"target_modules": ["q_prj", "v_proj"]})
    refused(folder, capsys, verb, "task.yaml:", "lora.target_modules", "q_prj", hint="q_proj")


def test_a_missing_weight_file(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder)
    (folder / "model" / "model.safetensors").unlink()
    refused(folder, capsys, verb, str(folder / "model"), "safetensors", hint="Fetch the model's weight files.")


def test_a_truncated_weight_file(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder)
    path = folder / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    refused(folder, capsys, verb, str(path), "truncated", hint="Fetch it again")


def test_chat_rows_without_a_chat_template(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder)
    row = {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}
    (folder / "train.jsonl").write_text((json.dumps(row) + "\n") * 20)
    refused(folder, capsys, verb, "chat template", hint="write the rows as prompt and completion")


def test_exact_match_on_rows_without_a_prompt(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder, evaluation={"metric": "exact_match"})
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(20)))
    refused(folder, capsys, verb, "evaluation.metric", "no prompt", hint="Write metric: loss.")


def test_rows_beyond_the_models_context(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    write_task(folder, dataset={"max_length": 4096})
    with (folder / "train.jsonl").open("a") as stream:
        stream.write(json.dumps({"prompt": "1+" * 100, "completion": "2"}) + "\n")
    refused(folder, capsys, verb, "dataset.max_length", "128 tokens", hint="Write max_length: 128.")


def test_everything_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sections = {"training": {"learing_rate": 1e-3}, "lora": {"target_modules": ["q_prj"]}}
    write_task(folder, **sections, objective="dpoo", num_gpus=-1)
    rows = (folder / "train.jsonl").read_text().splitlines()
    rows[16] = "{"
    (folder / "train.jsonl").write_text("\n".join(rows))
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").touch()
    found = Refused(folder, capsys, "tune", "-o", str(folder / "full"))
    assert found.code == 2
    for part in ("learing_rate", "q_prj", "objective", "num_gpus", "thesis.tex"):
        assert part in found.text, f"{part} is not in:\n{found.text}"


def test_everything_that_rows_and_model_have_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(folder, training={"learing_rate": 1e-3}, lora={"target_modules": ["q_prj"]})
    rows = (folder / "train.jsonl").read_text().splitlines()
    rows[4], rows[16] = '{"prompt": "1+1="}', "{"
    (folder / "train.jsonl").write_text("\n".join(rows))
    (folder / "full").mkdir()
    (folder / "full" / "run.db").touch()
    found = Refused(folder, capsys, "tune", "-o", str(folder / "full"))
    assert found.code == 2
    for part in ("5 problems", "learing_rate", "q_prj", "train.jsonl:5", "train.jsonl:17", "holds another run"):
        assert part in found.text, f"{part} is not in:\n{found.text}"


def test_a_finished_run_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(folder, training={"max_steps": 1}, search={"space": {}})
    for code, _ in ((0, "done"), (2, "refused")):
        with pytest.raises(SystemExit) as caught:
            main(["tune", str(folder / "task.yaml"), "-o", str(folder / "run")])
        assert (caught.value.code or 0) == code
    assert f"cohort resume {folder / 'run'}" in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 KB; skips where one may not be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_no_space_left(folder: Path, small_disk: Path, fork_server: ForkServer) -> None:
    write_task(folder, lora={"target_modules": "all-linear"}, search={"space": {"r": [8, 16], "lora_alpha": "2r"}})

    def cohort(*words: str) -> tuple[int, str]:
        status = fork_server.run({"act": "command", "folder": str(folder), "arguments": words})
        return status, (folder / "stderr").read_text()

    run = small_disk / "run"
    status, said = cohort("tune", str(folder / "task.yaml"), "-o", str(run))
    assert status == 2, said
    assert "Traceback" not in said
    assert "no space left" in said
    assert "cohort resume" in said
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    status, said = cohort("resume", str(run))
    assert status == 0, said
    assert (run / "best" / "adapter_model.safetensors").is_file()
