"""The verbs on a real, tiny run: tune, resume, status, report, export, generate, check."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cohort.cli.main import main
from tests.cli.tiny_task import write_tiny_task


def cohort(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of ``cohort`` with these words."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(caught.value.code or 0), shown.out, shown.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny task and its finished run."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_task(folder)
    with pytest.raises(SystemExit) as caught:
        main(["tune", str(folder / "task.yaml"), "-o", str(folder / "run")])
    assert caught.value.code in (0, None)
    return folder


def test_tune_leaves_what_it_promises(folder: Path) -> None:
    run = folder / "run"
    for name in ("task.yaml", "run.db", "report.html", "results.csv", "metrics.jsonl", "best/adapter_config.json"):
        assert (run / name).is_file(), name


def test_a_directory_with_another_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = cohort(capsys, "tune", str(folder / "task.yaml"), "-o", str(folder / "run"))
    assert code == 2
    assert "already holds another run" in err


def test_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "status", str(folder / "run"))
    assert code == 0
    assert "4 completed" in out
    assert "learning_rate" in out
    code, out, _ = cohort(capsys, "status", str(folder / "run"), "--json")
    status = json.loads(out)
    assert status["state"] == "done"
    assert len(status["trials"]) == 4


def test_resuming_a_finished_run_shows_its_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "resume", str(folder / "run"), "--json")
    assert code == 0
    assert json.loads(out)["best"]["trial"] in range(4)


def test_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run" / "report.html").unlink()
    code, out, _ = cohort(capsys, "report", str(folder / "run"))
    assert code == 0
    page = Path(out.strip()).read_text()
    assert page.startswith("<!")
    assert page.count("moves with it") == page.count("(lora_alpha moves with it)") == 1, "the task writes it as 2r"


def test_export_and_merge_say_the_same_logits(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    for form in ("peft", "merged"):
        code, out, _ = cohort(capsys, "export", str(folder / "run"), "--to", form, "-o", str(tmp_path / form))
        assert (code, out.strip()) == (0, str(tmp_path / form))
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    ids = torch.arange(2, 30)[None]
    with torch.no_grad():
        plain = base(ids).logits.clone()
        adapted = PeftModel.from_pretrained(base, tmp_path / "peft")(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(ids).logits
    assert not torch.equal(plain, adapted)
    # the same sum in another order, in float32
    torch.testing.assert_close(merged, adapted, rtol=1e-4, atol=1e-5)


def test_export_refuses_what_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = cohort(capsys, "export", str(folder / "run"), "--trial", "99")
    assert code == 2
    assert "99, which is no trial of this run" in err
    assert "one of 0, 1, 2, 3" in err
    (tmp_path / "x").touch()
    code, _, err = cohort(capsys, "export", str(folder / "run"), "-o", str(tmp_path))
    assert code == 2
    assert "not empty" in err


def test_generate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("generate", str(folder / "run"), "--prompt", "1+1=", "--max-new-tokens", "5", "--json")
    code, out, _ = cohort(capsys, *words)
    assert code == 0
    assert json.loads(out)[0]["prompt"] == "1+1="
    assert cohort(capsys, *words)[1] == out, "the likeliest tokens are the same each time"


def test_check_marks_what_is_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "check", str(folder / "task.yaml"))
    assert code == 0
    assert out.count("⟦") == 3
    assert "trials       4" in out
    assert "the task is fine" in out
    assert json.loads(cohort(capsys, "check", str(folder / "task.yaml"), "--json")[1])["num_trials"] == 4


def test_check_collects_problems_of_model_and_rows(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = (folder / "train.jsonl").read_text().splitlines()
    rows[16] = '{"prompt": "1+1=", '
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join(rows) + "\n")
    words = ("--dataset.train", str(bad), "--lora.target_modules", "[q_prj]")
    code, _, err = cohort(capsys, "check", str(folder / "task.yaml"), *words)
    assert code == 2
    assert "bad.jsonl:17" in err
    assert "q_proj" in err
    assert "command line --lora.target_modules" in err


def test_check_looks_at_the_device(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "device       cpu (" in cohort(capsys, "check", str(folder / "task.yaml"))[1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ("--num_gpus", "1", "--lora.target_modules", "[q_prj]")
    code, _, err = cohort(capsys, "check", str(folder / "task.yaml"), *words)
    assert code == 2
    assert "1 GPUs asked for, none that torch can use" in err
    assert "q_proj" in err, "all problems at once"


def test_check_prints_the_resolved_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "check", str(folder / "task.yaml"), "--resolved", "--training.seed", "11")
    assert code == 0
    assert "seed: 11" in out
    assert "select_fraction: 0.5" in out


def test_interrupted_and_resumed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "cohort", "tune", str(folder / "task.yaml"), "-o", str(run), "--max_steps", "400"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "training" in line and "running" in line:
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert f"cohort resume {run}" in rest
    assert "Traceback" not in rest
    code, out, _ = cohort(capsys, "status", str(run), "--json")
    assert code == 0
    assert json.loads(out)["state"] == "stopped"
    _, out, _ = cohort(capsys, "status", str(run))
    assert f"to go on from the last checkpoint: cohort resume {run}" in out
    (run / "run.db").write_bytes(b"no database any more" * 100)
    code, _, err = cohort(capsys, "status", str(run))
    assert code != 0
    assert f"`cohort resume {run}` puts the copy of the last checkpoint in its place" in err
