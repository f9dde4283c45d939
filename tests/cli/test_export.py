"""``cohort export``: adapter and merged model give the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.integrations.hub import HubRepository
from tests.cli.command import cohort


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
    assert "99, which is not a trial of this run" in err
    assert "one of 0, 1, 2, 3" in err
    (tmp_path / "x").touch()
    code, _, err = cohort(capsys, "export", str(folder / "run"), "-o", str(tmp_path))
    assert code == 2
    assert "not empty" in err
    code, _, err = cohort(capsys, "export", str(folder / "run"), "-o", str(tmp_path / "x" / "y"))
    assert code == 2
    assert f"a path below {tmp_path / 'x'}, which is a file" in err


def test_the_run_itself_is_no_place_and_nothing_to_delete(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, shown = cohort(capsys, "export", folder / "run", "-o", folder / "run")
    assert code == 2
    assert "Choose another directory.\n" in shown
    assert "delete" not in shown


def test_what_was_exported_is_uploaded_after_the_login_was_checked(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    target = tmp_path / "out"

    def push(_: HubRepository, path: Path) -> str:
        done.append(path)
        return "https://hub/me/mine"

    monkeypatch.setattr(HubRepository, "check", lambda repository: done.append((repository.name, target.exists())))
    monkeypatch.setattr(HubRepository, "push", push)
    code, out, _ = cohort(capsys, "export", folder / "run", "-o", target, "--push-to-hub", "me/mine")
    assert (code, out.split()) == (0, [str(target), "https://hub/me/mine"])
    assert done == [("me/mine", False), target]
    code, _, err = cohort(capsys, "export", folder / "run", "--public")
    assert (code, "no --push-to-hub" in err) == (2, True)
