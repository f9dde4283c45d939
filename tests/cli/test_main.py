"""The command line: exit codes, messages without tracebacks, JSON, and what is not supported yet."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest

from cohort.cli.main import main


def run(*arguments: str) -> int:
    """Return the exit code of ``cohort`` with these words."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_characters_that_an_output_lacks_are_printed_as_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    # a terminal of another encoding, or none in a container
    output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", output)
    run("--version")
    print("\u27e6é\u27e7 \u2514\u2500 \u4e2d")
    output.seek(0)
    assert output.read().endswith("[[é]] +- \\u4e2d\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("when", ["build_app", "PlainGroup.parse_args", "PlainGroup.resolve_command"])
def test_a_signal_before_a_verb_guards_itself_has_its_code_and_a_word(
    when: str,
    number: signal.Signals,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def arrives(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(f"cohort.cli.main.{when}", arrives)
    assert run("status", "runs/first") == code
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert capsys.readouterr().err == f"interrupted by {name}\n"


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for verb in (
        "init",
        "tune",
        "run",
        "plan",
        "resume",
        "status",
        "trials",
        "report",
        "export",
        "generate",
        "chat",
        "evaluate",
        "serve",
        "dashboard",
        "check",
        "doctor",
    ):
        assert f"\n  {verb} " in shown


def test_the_shell_completes_verbs_and_choices(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the shell is named: there is none to detect where a scheduler or nohup started the tests
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert run("--show-completion", "bash") == 0
    assert "complete -o default -F _cohort_completion cohort" in capfd.readouterr().out
    monkeypatch.setenv("_COHORT_COMPLETE", "complete_bash")
    for words, position, expected in (("cohort tu", 1, "tune"), ("cohort tune --on-existing over", 3, "overwrite")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(position))
        assert run() == 0
        assert capfd.readouterr().out.split() == [expected]


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    import cohort

    assert run("--version") == 0
    assert capsys.readouterr().out == f"cohort {cohort.__version__}\n"


def test_every_problem_of_a_task_is_shown_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("base_model: org/name\ndataset: {train: nope.jsonl}\nlora: {rr: 8}\nobjective: dpoo\n")
    assert run("tune", str(task), "-o", str(tmp_path / "run"), "--sed", "3") == 2
    assert "training.seed" in capsys.readouterr().err
    assert run("tune", str(task), "-o", str(tmp_path / "run")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.startswith("error: 4 problems in the input\n")
    for words in (
        f"{task}:1: model_name_or_path",
        f"{task}:2: dataset.train",
        f"{task}:3: lora.rr",
        "Did you mean lora.r?",
        "objective: dpo?",
    ):
        assert words in captured.err
    assert not (tmp_path / "run").exists()


def test_problems_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", str(tmp_path / "task.yaml"), "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 2
    assert error["problems"][0]["found"] == "no such file"


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", str(tmp_path / "task.yaml"), "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["resume", "status", "trials", "report", "export", "generate", "chat", "evaluate"])
def test_a_directory_without_a_run(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"generate": ["--prompt", "x"], "evaluate": ["--data", "x.jsonl"]}.get(verb, [])
    assert run(verb, str(tmp_path / "nothing"), *extra) == 2
    shown = capsys.readouterr().err
    assert "cohort tune" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("arguments", [["frobnicate"], ["tune"], ["export", "x", "--to", "gguf"], ["status"]])
def test_words_that_make_no_command(arguments: list[str]) -> None:
    assert run(*arguments) == 2
