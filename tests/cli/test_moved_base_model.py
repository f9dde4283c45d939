"""Which base an adapter is used on: the one of the run, wherever it is now, and no other."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.command import cohort
from tests.cli.tiny_task import write_tiny_model

Capture = pytest.CaptureFixture[str]
PROMPT = ("--prompt", "1+1=", "--max-new-tokens", "3")


@pytest.fixture
def moved(folder: Path, tmp_path: Path) -> Path:
    """A finished run, ``run``, and its base model at another place, ``weights``."""
    shutil.copytree(folder / "run", tmp_path / "deep" / "run")
    shutil.copytree(folder / "model", tmp_path / "weights")
    forget_the_old_place(tmp_path / "deep" / "run", str(folder))
    return tmp_path


def forget_the_old_place(run: Path, folder: str) -> None:
    """Let the run believe it began where nothing is any more."""
    task = run / "task.yaml"
    task.write_text(task.read_text().replace(folder, f"/not/here{folder}"))
    with closing(sqlite3.connect(run / "run.db")) as connection:
        connection.execute("UPDATE facts SET value = replace(value, ?, ?)", (folder, f"/not/here{folder}"))
        connection.commit()


def verbs(run: Path, output: Path) -> list[tuple[str, ...]]:
    return [
        ("generate", str(run), *PROMPT),
        ("export", str(run), "--to", "peft", "-o", str(output / "peft")),
        ("export", str(run), "--to", "merged", "-o", str(output / "merged")),
        ("export", str(run), "--trial", "0", "-o", str(output / "trial")),
    ]


def refused(capsys: Capture, *words: str) -> str:
    code, _, err = cohort(capsys, *words)
    assert (code, "Traceback" in err) == (2, False), err
    return err


def test_changed_weights_are_refused_by_every_verb(moved: Path, capsys: Capture) -> None:
    run, base = moved / "deep" / "run", str(moved / "weights")
    weights = load_file(moved / "weights" / "model.safetensors")
    weights["model.norm.weight"] += 0.5
    save_file(weights, moved / "weights" / "model.safetensors", metadata={"format": "pt"})
    for words in (*verbs(run, moved), ("resume", str(run))):
        err = refused(capsys, *words, "--model_name_or_path", base)
        assert f"model_name_or_path: {base}" in err
        assert "other weights or another config.json than the run began with (SHA-256" in err
        assert "give the path of an unchanged copy with --model_name_or_path PATH" in err
    assert not any((moved / name).exists() for name in ("peft", "merged", "trial"))
    assert base not in (run / "task.yaml").read_text()


def test_a_model_of_other_shapes_is_refused_even_if_the_run_recorded_no_hash(moved: Path, capsys: Capture) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    run, other = moved / "deep" / "run", moved / "other"
    write_tiny_model(other)
    config = LlamaConfig.from_pretrained(other, hidden_size=48, num_hidden_layers=1)
    LlamaForCausalLM(config).save_pretrained(other)
    with closing(sqlite3.connect(run / "run.db")) as connection:
        connection.execute("DELETE FROM facts WHERE key = 'model_hash'")
        connection.commit()
    shutil.rmtree(run / "trials" / "0000")
    for words in verbs(run, moved)[:3]:
        if "peft" not in words:
            err = refused(capsys, *words, "--model_name_or_path", str(other))
            assert "the base model that the adapter was trained on" in err or "Use the base model" in err


def test_a_base_that_is_gone_is_named_with_the_option(moved: Path, capsys: Capture) -> None:
    for words in verbs(moved / "deep" / "run", moved):
        if "peft" in words:
            # an adapter is copied without its base model, as on a machine that never had it
            assert cohort(capsys, *words)[0] == 0
        elif "--trial" not in words:
            assert "Add --model_name_or_path PATH" in refused(capsys, *words)
    assert "found    no such directory" in refused(
        capsys, *verbs(moved / "deep" / "run", moved)[0], "--base_model", "./no"
    )
    empty = moved / "empty"
    empty.mkdir()
    err = refused(capsys, "generate", str(moved / "deep" / "run"), *PROMPT, "--model_name_or_path", str(empty))
    assert "config.json" in err


def test_the_place_of_a_moved_base_is_used_and_recorded(
    moved: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, base = moved / "deep" / "run", str(moved / "weights")
    monkeypatch.chdir(moved)
    for number, words in enumerate(verbs(run, moved)):
        copy = moved / f"copy-{number}"
        shutil.copytree(run, copy)
        code, _, err = cohort(capsys, words[0], str(copy), *words[2:], "--model_name_or_path", "weights")
        assert (code, err) == (0, "")
        assert base in (copy / "task.yaml").read_text()
        # from now on without the option
        assert cohort(capsys, "generate", str(copy), *PROMPT)[0] == 0
    for name in ("peft", "trial"):
        assert json.loads((moved / name / "adapter_config.json").read_text())["base_model_name_or_path"] == base
        assert f'from_pretrained("{base}")' in (moved / name / "README.md").read_text()
    assert cohort(capsys, "resume", str(run), "--model_name_or_path", base)[0] == 0
    assert base in (run / "task.yaml").read_text()
    assert "has finished and reads no rows any more" in refused(
        capsys, "resume", str(run), "--dataset.train", str(moved / "weights")
    )


def test_an_adapter_is_no_base_model(folder: Path, moved: Path, capsys: Capture) -> None:
    best, base = folder / "run" / "best", str(folder / "model")
    for words in (
        ("generate", str(moved / "deep" / "run"), *PROMPT),
        ("export", str(moved / "deep" / "run"), "--to", "merged", "-o", str(moved / "merged")),
        ("check", str(folder / "task.yaml")),
    ):
        err = refused(capsys, *words, "--model_name_or_path", str(best))
        assert f"an adapter, not a model; it was trained on the base model '{base}'" in err
        assert f"Give '{base}', or merge the adapter into it" in err
        assert err.count("an adapter, not a model") == 1
