"""What the documents tell users to type works; what they point at is there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from cohort.cli.main import main
from cohort.engine.resume_checks import KEYS_THAT_MAY_CHANGE
from cohort.tasks.loading import load_task
from tests.cli.tiny_task import write_rows, write_tiny_task
from tests.conftest import REPOSITORY
from tests.core.plugin_packages import install
from tests.docs.documents import Block, blocks_of, documents
from tools import measured_table
from tools.measured_table import BEGIN, END, TABLES, readme_table, renewed, script_of, table, torch_line

# protobuf and the standard library deprecate what tensorboard still uses
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

RESULTS = REPOSITORY / "benchmarks" / "results"
COMMANDS = [path for path in documents() if blocks_of(path, "sh")]
PYTHON = [path for path in documents() if blocks_of(path, "python")]
TASKS = [path for path in documents() if any("model_name_or_path" in b.text for b in blocks_of(path, "yaml"))]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the documents assume it: model/, train.jsonl, test.jsonl, task.yaml and a finished runs/mine."""
    folder = tmp_path_factory.mktemp("documents")
    write_tiny_task(folder)
    write_rows(folder / "test.jsonl", count=6)
    shutil.copytree(REPOSITORY / "examples" / "gsm8k", folder / "examples" / "gsm8k")
    assert _exit_code(["tune", str(folder / "task.yaml"), "-o", str(folder / "runs" / "mine")]) == 0
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working directory."""
    copy = tmp_path / "work"
    shutil.copytree(prepared, copy)
    monkeypatch.chdir(copy)
    return copy


def _exit_code(words: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(words)
    return int(caught.value.code or 0)


def _commands(block: Block) -> list[list[str]]:
    lines = [line for line in block.lines if line.strip() and not line.startswith("#")]
    return [shlex.split(line, comments=True) for line in lines]


def _without_output(words: list[str]) -> list[str]:
    place = words.index("-o")
    return [*words[:place], *words[place + 2 :]]


@pytest.mark.parametrize("path", COMMANDS, ids=str)
def test_every_command_of_a_document_works(path: Path, folder: Path) -> None:
    for block in blocks_of(path, "sh"):
        for program, verb, *words in _commands(block):
            assert program == "cohort", f"{path}: {program} is not run by this test: use another kind of block"
            if "hub" in block.needs:
                # the model cannot be loaded here, but file and keys can be wrong
                load_task(Path(words[0]), _without_output(words[1:]))
            elif block.needs:
                assert words[0].startswith("--") or (folder / words[0]).is_file()
            else:
                if verb == "tune":
                    shutil.rmtree(words[words.index("-o") + 1], ignore_errors=True)
                if "tensorboard" in words:
                    pytest.importorskip("tensorboard", reason="tensorboard is an optional package")
                assert _exit_code([verb, *words]) == 0, f"{path}: {shlex.join([verb, *words])}"


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_python_of_a_document_works(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks_of(path, "python"):
        if block.needs:
            compile(block.text, str(path), "exec")
        else:
            # dataclasses look their module up
            monkeypatch.setitem(sys.modules, "document", module := ModuleType("document"))
            exec(compile(block.text, str(path), "exec"), module.__dict__)


@pytest.mark.parametrize("path", TASKS, ids=str)
def test_a_task_file_in_a_document_is_valid(path: Path, folder: Path) -> None:
    for number, block in enumerate(blocks_of(path, "yaml")):
        if "model_name_or_path" in block.text:
            (folder / f"shown-{number}.yaml").write_text(block.text)
            load_task(folder / f"shown-{number}.yaml")


def test_commands_named_in_a_sentence_exist(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [(REPOSITORY / path).read_text(encoding="utf-8") for path in documents()]
    verbs = {verb for text in texts for verb in re.findall(r"`cohort ([a-z][a-z-]*)", text)}
    assert {"check", "tune", "status"} <= verbs
    for verb in sorted(verbs):
        assert _exit_code([verb, "--help"]) == 0, f"cohort {verb}: {capsys.readouterr().err}"


def test_the_page_on_resuming_names_the_keys_that_may_change() -> None:
    page = " ".join((REPOSITORY / "docs" / "how-to" / "resume.md").read_text(encoding="utf-8").split())
    (sentence,) = re.findall(r"Only (.*?) may change\.", page)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(KEYS_THAT_MAY_CHANGE)


@pytest.mark.parametrize("path", documents(), ids=str)
def test_links_and_paths_exist(path: Path) -> None:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (REPOSITORY / path.parent / target).exists(), f"{path}: {target}"
    for name in re.findall(r"`((?:src|tests|benchmarks|examples|docs)/[\w./-]+)`", text):
        assert (REPOSITORY / name).exists(), f"{path}: {name}"


def test_the_exit_rule_of_the_how_to_works_from_a_task_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path("docs/how-to/write-an-exit-rule.md")
    (rule,), (toml,) = blocks_of(page, "python"), blocks_of(page, "toml")
    ((group, points),) = tomllib.loads(toml.text)["project"]["entry-points"].items()
    ((name, target),) = points.items()
    site = folder / "site"
    install(monkeypatch, site, package="cohort-ceiling", group=group, points=points)
    (site / f"{target.partition(':')[0]}.py").write_text(rule.text)
    (choice,) = blocks_of(page, "yaml")
    text = (folder / "task.yaml").read_text().replace("early_exit: none\n", choice.text)
    (folder / "ceiling.yaml").write_text(text)
    settings = load_task(folder / "ceiling.yaml").early_exit_settings()
    assert (settings.rule, settings.ceiling) == (name, 2.5)
    # a byte-level model of random weights has a loss of 5.5 nats, far above the ceiling
    assert _exit_code(["tune", "ceiling.yaml", "-o", "runs/ceiling"]) == 0
    assert "too high" in (folder / "runs" / "ceiling" / "results.csv").read_text()


def test_make_targets_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for path in (*documents(), Path("CONTRIBUTING.md")):
        for target in re.findall(r"\bmake ([a-z-]+)\b +#|^    make ([a-z-]+)$", (REPOSITORY / path).read_text()):
            name = "".join(target)
            assert re.search(rf"^{name}:", makefile, flags=re.MULTILINE), f"{path}: make {name}"


def test_messages_of_the_troubleshooting_page_are_ours() -> None:
    source = " ".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    # a message may be written as several adjacent strings
    source = re.sub(r'"\s+f?"', "", source)
    page = (REPOSITORY / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert len(messages) > 10
    for message in messages:
        assert message in source, message


@pytest.mark.parametrize("document", TABLES, ids=str)
def test_numbers_in_the_tables_are_measured(document: Path) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    rows = TABLES[document]()
    assert renewed(text, rows).startswith(text[: text.index(BEGIN)])
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip().splitlines()
    # a file that was written since may be missing here; a number that no file has may not be here
    assert len(shown) > 2
    assert set(shown) <= set(rows.splitlines()), "run python tools/measured_table.py"


def test_the_table_follows_the_files(tmp_path: Path) -> None:
    result = {
        "question": "Why?",
        "date": "2026-01-02",
        "command": "python -m benchmarks.steps.lora_tax --shape 1b",
        "machine": {"threads": "2"},
        "headline": {"ratio": 2.34567},
    }
    (tmp_path / "why.json").write_text(json.dumps(result))
    folder, *_, row = table(tmp_path).splitlines()
    assert folder == "### steps"
    assert row == "| [why](../benchmarks/results/why.json): Why? | ratio **2.346** | CPU, 2 threads, 2026-01-02 |"


def _result(folder: Path, name: str, **changes: object) -> None:
    result = {"headline": {}, "rows": [], "machine": {"threads": "1"}, "versions": {"torch": "2.13.0+cpu"}}
    (folder / f"{name}.json").write_text(json.dumps({**result, **changes}))


def test_the_readme_shows_what_a_file_has_and_says_what_no_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured_table.ReadmeRow(
        results=("better", "why"),
        what="Why",
        answers=("**{a:.1f}x**", "at most {b:.0f}"),
        compared=("{rows:.0f} rows of PEFT",),
        real=("{rows:.0f} rows.",),
    )
    monkeypatch.setattr(measured_table, "README_ROWS", (row,))
    with pytest.raises(ValueError, match="'Why' finds none of better, why"):
        readme_table(tmp_path)
    _result(tmp_path, "why", headline={"a": 1.25}, notes={"rows": 7, "who": "x"})
    shown = "**1.2x** | 7 rows of PEFT | 7 rows. | CPU, 1 thread |"
    assert readme_table(tmp_path).splitlines()[2] == f"| [Why](benchmarks/results/why.json) | {shown}"
    _result(tmp_path, "better", headline={"a": 1.25, "b": 3.0}, notes={"rows": 7})
    assert "better.json) | **1.2x**, at most 3 |" in readme_table(tmp_path)
    _result(tmp_path, "better", headline={"c": 1.0})
    with pytest.raises(ValueError, match="finds these numbers: c"):
        readme_table(tmp_path)


def test_the_sweeps_of_the_readme_are_whole_ones() -> None:
    """Their seconds are wall times of the command, which decides itself; replays and steps alone say that they are."""
    rows = readme_table().splitlines()[2:4]
    assert all("`cohort tune`" in row and "exits by its own decisions" in row for row in rows)
    wall = {row["what"]: row["wall_s"] for row in json.loads((RESULTS / "whole_sweep_1b.json").read_text())["rows"]}
    assert f"**{wall['sweep, warm']:.0f} s**, **{wall['sweep, cold']:.0f} s** the first time" in rows[0]


def test_the_seconds_of_a_price_all_in_are_those_of_its_longest_sweep(tmp_path: Path) -> None:
    rows = [
        {"what": "PEFT, batch 1", "start_s": 20.0, "step_ms": 400.0, "rows": 320, "format": "none"},
        {"what": "PEFT, loads on the GPU", "start_s": 10.0, "step_ms": 400.0, "rows": 320, "format": "none"},
        {"what": "sweep, first", "wall_s": 90.0, "rows": 320, "format": "none"},
        {"what": "sweep, again", "wall_s": 82.0, "rows": 320, "format": "none"},
        {"what": "sweep, again", "wall_s": 78.0, "rows": 320, "format": "none"},
        {"what": "sweep, again", "wall_s": 40.0, "rows": 96, "format": "none"},
        {"what": "sweep, again", "wall_s": 70.0, "rows": 320, "format": "fp8"},
    ]
    _result(tmp_path, "all_in_price_8b", rows=rows, notes={"fast_host_step_ms": 150.0, "layers": "all"})
    found = measured_table.facts("all_in_price_8b", tmp_path)
    assert (found["sweep_cold_seconds"], found["sweep_warm_seconds"], found["rows"]) == (90.0, 80.0, 320)
    assert (found["peft_seconds"], found["peft_fast_seconds"]) == (148.0, 68.0)
    assert not any(name.endswith("_elsewhere") for name in found)
    # another host's file may hold longer sweeps
    rows += [{"what": "sweep, again", "wall_s": 200.0, "rows": 1000, "format": "none"}]
    _result(tmp_path, "all_in_price_8b_eighth_host", rows=rows, notes={"fast_host_step_ms": 150.0, "layers": "all"})
    found = measured_table.facts("all_in_price_8b", tmp_path)
    assert (found["sweep_warm_seconds_elsewhere"], found["peft_fast_seconds_elsewhere"]) == (80.0, 68.0)


def test_which_torch_results_are_of_is_said(tmp_path: Path) -> None:
    _result(tmp_path, "a")
    _result(tmp_path, "b", machine={"gpu": "NVIDIA H200"}, versions={"torch": "2.11.0"})
    _result(tmp_path, "c", machine={"gpu": "NVIDIA H200"}, versions={"torch": "2.12.1"})
    assert "GPUs are of torch 2.11.0 (1 file) and 2.12.1 (1 file); results on CPUs are of torch 2.13.0 (1 file)" in (
        torch_line(tmp_path)
    )


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/how-to/gpu.md", "docs/benchmarks.md"])
def test_pages_that_praise_the_pins_name_the_torch_of_gpu_results(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    results = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    of_gpus = {".".join(r["versions"]["torch"].split(".")[:2]) for r in results if "gpu" in r["machine"]}
    assert {version for version in of_gpus if f"torch {version}" not in text} == set()


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python -m benchmarks.steps.lora_tax --shape 8b", "lora_tax"),
        ("python benchmarks/plan_packing.py", "plan_packing"),
        ("python memory.py --shape 1b", "peak_bytes"),
        ("python -m benchmarks.augmented_product", "augmented_product"),
    ],
)
def test_recorded_commands_name_a_script(command: str, script: str) -> None:
    """Results were recorded when the scripts lay in one folder, and from that folder."""
    assert script_of(command) == script
