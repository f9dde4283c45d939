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


def test_a_gguf_adapter_is_one_command(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    target = tmp_path / "out"
    code, out, err = cohort(capsys, "export", folder / "run", "--to", "gguf", "--outtype", "f16", "-o", target)
    assert (code, out.strip()) == (0, str(target))
    assert f"llama-cli -m BASE.gguf --lora {target / 'adapter.gguf'}" in err
    assert sorted(path.name for path in target.iterdir()) == ["README.md", "adapter.gguf"]
    reader = gguf.GGUFReader(target / "adapter.gguf")
    assert reader.fields["general.type"].contents() == "adapter"
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F16"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "gguf", "-o", "mine.gguf"], "Write -o mine: the file is mine/adapter.gguf."),
        (["--to", "merged", "--outtype", "f16"], "--outtype with --to merged"),
    ],
)
def test_options_of_gguf_that_mean_nothing_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    code, _, err = cohort(capsys, "export", folder / "run", *arguments)
    assert code == 2
    assert told in err


def test_without_the_package_the_extra_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.adapter_files.gguf_file.importlib.util.find_spec", lambda name: None)
    code, _, err = cohort(capsys, "export", folder / "run", "--to", "gguf")
    assert (code, "pip install 'cohort-lora[gguf]'" in err) == (2, True)
