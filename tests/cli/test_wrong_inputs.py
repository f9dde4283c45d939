"""A hundred wrong inputs: exit code 2, the place, and the hint that helps; never a traceback."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.cli.command import cohort
from tests.cli.tiny_task import TASK, write_tiny_task


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and rows; tests write other files next to them."""
    folder = tmp_path_factory.mktemp("wrong")
    write_tiny_task(folder)
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Return what a command that is refused says."""
    code, out, err = cohort(capsys, *arguments)
    assert code == 2, out + err
    assert "Traceback" not in out + err
    return err


@pytest.mark.parametrize(
    ("old", "new", "where", "hint"),
    [
        ("early_exit: none", "early_exit: hyperband", "early_exit", "Write early_exit: {rule: hyperband}."),
        ("early_exit: none", "early_exit: {rule: medain}", "early_exit.rule", "Did you mean rule: median?"),
        ("validation: 0.25", 'validation: "10%"', "dataset.validation", "Write 0.1, without quotes."),
        ("validation: 0.25", "validation: 25%", "dataset.validation", "Write 0.25, without quotes."),
        ("validation: 0.25", 'validation: "0.1"', "dataset.validation", "Write 0.1, without quotes."),
        ("validation: 0.25", "validation: 10", "dataset.validation", "Write 0.1 for 10 %"),
        ("num_gpus: 0", "report_to: tensorbord", "report_to", "Did you mean tensorboard?"),
        ("num_gpus: 0", "report_to: [mlflow, wandbb]", "report_to", "Did you mean wandb?"),
        ("train: train.jsonl", "train: https://x.org/a.jsonl", "dataset.train", "Download the file and name it"),
        ("train: train.jsonl", 'train: "*.jsonl"', "dataset.train", "patterns are not expanded"),
        ("train: train.jsonl", "train: $HOME/a.jsonl", "dataset.train", "variables are not replaced"),
        ("train: train.jsonl", "train: model", "dataset.train", "the model under model_name_or_path"),
        ("base_model: model", "base_model: https://huggingface.co/o/m", "model_name_or_path", "Write o/m, the model"),
        ("[q_proj, v_proj]", "q_proj, v_proj", "lora.v_proj", "a list stands in brackets: [a, b]"),
        ("num_gpus: 0", "load_in_4bit: true", "load_in_4bit", "quantization: nf4 keeps the base model in 4 bits"),
        ("num_gpus: 0", "quantization: fp9", "quantization", "Did you mean quantization: fp8?"),
        ("num_gpus: 0", "quantization: true", "quantization", "none | fp8"),
        ("num_gpus: 0", "objective: stf", "objective", "Did you mean objective: sft?"),
        ("[1e-3, 1e-2]", ".inf", "search.space.learning_rate", "Write a finite number"),
        ("batch_size: 2", "weight_decay: .nan", "training.weight_decay", "Write a finite number"),
        ("base_model: model", "base_model: ./modle", "model_name_or_path", "Did you mean 'model'?"),
        ("base_model: model", "model: model", "model", "Did you mean model_name_or_path?"),
        ("train: train.jsonl", "train: []", "dataset.train", "Name at least one file."),
        ("train: train.jsonl", "train: [train.jsonl, 5]", "dataset.train[1]", "Write a path"),
        ("train: train.jsonl", "train: trian.jsonl", "dataset.train", "Did you mean 'train.jsonl'?"),
        ("max_length: 64", 'max_length: "64"', "dataset.max_length", "Remove the quotes: 64."),
        ("max_length: 64", "on_long_rows: splt", "dataset.on_long_rows", "Did you mean on_long_rows: split?"),
        ("max_length: 64", "on_long_rows: split", "dataset.on_long_rows", "Write on_long_rows: drop or truncate."),
        ("max_length: 64", "split_overlap: 1", "dataset.split_overlap", "0.1, the default"),
        ("max_length: 64", "chat_template: chatmll", "dataset.chat_template", "Did you mean chatml?"),
        ("max_length: 64", "trained_turns: first", "dataset.trained_turns", "Choose one of these."),
        ("max_length: 64", "test: trian.jsonl", "dataset.test", "Did you mean 'train.jsonl'?"),
        ("max_length: 64", "sequence_len: 64", "dataset.sequence_len", "Did you mean dataset.max_length?"),
        ("max_length: 64", "packing: true", "dataset.packing", "rows are always packed"),
        ("max_length: 64", "columns: {prompt: nope}", "dataset.columns.prompt", "Name a column of the file."),
        ("lora_alpha: 2r", "lora_alpha: r2", "lora.lora_alpha", "Write for example 2r."),
        ("lora_alpha: 2r", "use_dora: maybe", "lora.use_dora", "Write true or false"),
        ("lora_alpha: 2r", "bias: none", "lora.bias", "adapters have no biases"),
        ("max_steps: 6", "num_train_epochs: three", "training.num_train_epochs", "3.0, the default"),
        ("max_steps: 6", "lr_scheduler_type: cosin", "training.lr_scheduler_type", "lr_scheduler_type: cosine?"),
        ("max_steps: 6", "warmup_steps: 10", "training.warmup_steps", "Did you mean training.warmup_ratio?"),
        ("max_steps: 6", "bf16: true", "training.bf16", "the precision follows the model's files"),
        ("max_examples: 4", "metric: rouge", "evaluation.metric", "Did you mean rouge_l?"),
        ("max_examples: 4", "eval_steps: 10", "evaluation.eval_steps", "Did you mean evaluation.every_fraction?"),
        ("[1e-3, 1e-2]", "{min: 1}", "search.space.learning_rate", "Add max"),
        ("[1e-3, 1e-2]", "[1e-3, 1e-3]", "search.space.learning_rate[1]", "Remove one of the two"),
        ("r: [2, 4]", "rank: [2]", "search.space.rank", "Did you mean search.space.r?"),
        ("early_exit: none", "early_exit: {rule: asha, patience: 0}", "early_exit.patience", "3, the default"),
        ("num_gpus: 0", "num_gpus: all", "num_gpus", "Write num_gpus: auto."),
        ("num_gpus: 0", "device: cuda", "device", "Did you mean num_gpus?"),
        ("num_gpus: 0", "memory: {limit: 24}", "memory.limit", "Write a unit, such as 24GiB."),
        ("  space:", '  constraints: ["r >"]\n  space:', "search.constraints[0]", "Write it as in Python"),
        ("  space:", '  constraints: ["r > 100"]\n  space:', "search.constraints", "Loosen one of them"),
    ],
)
def test_a_task_file(
    inputs: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, where: str, hint: str
) -> None:
    assert old in TASK
    path = inputs / "wrong.yaml"
    path.write_text(TASK.replace(old, new))
    said = refused(capsys, "check", path)
    assert f"{path}:" in said
    assert where in said
    assert hint in said


def test_what_is_allowed_for_an_objective_is_built(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = inputs / "objective.yaml"
    path.write_text(TASK + "objective: stf\n")
    assert "allowed  sft | cpo | dpo | function | grpo | kto | orpo | simpo\n" in refused(capsys, "check", path)


@pytest.mark.parametrize(
    ("name", "content", "where", "hint"),
    [
        ("semicolons.csv", "prompt;completion\n1+1=;2\n", ":1", "delimiter=';'"),
        ("array.jsonl", '[{"prompt": "a", "completion": "b"}]', ":1", "Name the file .json."),
        (
            "latin.jsonl",
            '{"prompt": "é", "completion": "b"}\n'.encode("latin-1") * 30,
            ":1-30",
            "Save the file as UTF-8",
        ),
        ("empty.jsonl", '{"prompt": "a", "completion": ""}\n' * 30, ":1-30", "Fill it in, or remove the row."),
        ("nulls.jsonl", '{"prompt": "a", "completion": null}\n' * 9, ":1", "Fill in the values that are null"),
        ("nan.jsonl", '{"prompt": "a", "completion": NaN}\n' * 9, ":1-9", "Fill in the value, or remove the row."),
        (
            "qa.jsonl",
            '{"Question": "a", "Answer": "b"}\n' * 9,
            ":1",
            "Map the file's columns: write dataset.columns: {prompt: Question, completion: Answer}.",
        ),
        ("foo.jsonl", '{"foo": "a", "bar": "b"}\n' * 9, ":1", "e.g. dataset.columns: {prompt: question,"),
        ("commas.jsonl", '{"prompt": "a", "completion": "b"},\n' * 9, ":1-9", "Remove the comma after the object"),
        ("python.jsonl", "{'prompt': 'a', 'completion': 'b'}\n" * 9, ":1-9", "in Python json.dumps(row), not str(row)"),
        ("object.json", '{"a": [{"prompt": "a"}]}', ":1", "Rename 'a' to 'data'"),
        ("quote.csv", 'prompt,completion\n"a,b\n', ":2", "Close the quotation mark"),
        ("fields.csv", "prompt,completion\na,b,c\n", ":2", "Quote fields that contain a comma"),
        ("roles.jsonl", '{"messages": [{"role": "bot", "content": "x"}]}\n' * 9, ":1-9", "Write assistant for bot."),
        ("roles.jsonl", '{"messages": [{"role": "me", "content": "x"}]}\n' * 9, ":1-9", "Use one of these roles."),
        (
            "number.jsonl",
            '{"prompt": 1, "completion": "b"}\n' * 9,
            ":1-9",
            "Write the value as text: in JSON in quotes.",
        ),
        ("none.jsonl", "", "", "Add rows to it, or name another file."),
        ("header.csv", "prompt,completion\n", "", "Add rows to it, or name another file."),
        ("twice.csv", "prompt,prompt,completion\na,b,c\n", ":1", "Rename one of the two columns, or remove it."),
        ("packed.jsonl", gzip.compress(b"{}", mtime=0), ":1", "Unpack it: `gunzip -c FILE > NEW_FILE`."),
        ("pointer.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:a\n", ":1", "`git lfs pull`"),
        ("page.csv", "<!DOCTYPE html>\n<html><body>404</body></html>\n", ":1", "Download the file itself"),
        (
            "long.jsonl",
            '{"prompt": "' + "a" * (16 << 20) + '", "completion": "b"}\n',
            ":1",
            "Split its text over several",
        ),
    ],
)
def test_a_file_of_rows(
    inputs: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, where: str, hint: str
) -> None:
    (inputs / name).write_bytes(content.encode() if isinstance(content, str) else content)
    said = refused(capsys, "check", inputs / "task.yaml", "--dataset.train", inputs / name)
    assert "1 problem in the input" in said
    assert name + where in said
    assert hint in said


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rows.jsonl.gz", "Unpack it: `gunzip rows.jsonl.gz`."),
        ("rows.tsv", "delimiter='\\t'))\" < rows.tsv > rows.csv`."),
        ("rows.xlsx", "Convert the file to JSON lines"),
    ],
)
def test_a_file_of_another_kind(inputs: Path, capsys: pytest.CaptureFixture[str], name: str, hint: str) -> None:
    (inputs / name).write_text("a")
    said = refused(capsys, "check", inputs / "task.yaml", "--dataset.train", inputs / name)
    assert hint in said


def test_rows_in_the_place_of_a_task_file(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Name the task file; it names the rows." in refused(capsys, "check", inputs / "train.jsonl")


def test_an_output_is_refused_before_rows_are_read(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inputs / "bad.jsonl").write_text("{\n")
    (inputs / "full").mkdir()
    (inputs / "full" / "thesis.tex").touch()
    (inputs / "link").symlink_to(inputs / "nowhere")
    for name, found in (("full", "thesis.tex"), ("link", "a link to"), ("task.yaml", "a file")):
        # these rows would be a second problem if they were read
        said = refused(
            capsys, "tune", inputs / "task.yaml", "-o", inputs / name, "--dataset.train", inputs / "bad.jsonl"
        )
        assert "1 problem in the input" in said
        assert found in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--lr", "1"), "Did you mean training.learning_rate?"),
        (("--interleave_probs", "[1, 2]"), "Did you mean dataset.weights?"),
        (("--lora_r", "3"), "Did you mean lora.r?"),
        (("--search.space.lr", "1"), "Did you mean search.space.learning_rate?"),
        (("--training.seed",), "Write --training.seed VALUE."),
        (("--seed", "x"), "0, the default"),
        (("--search.space.r", "[2,"), "look for a missing colon"),
        (("--early_exit", "hyperband"), "Write early_exit: {rule: hyperband}."),
        (("--dataset.train", "gone.jsonl"), "which does not exist"),
    ],
)
def test_an_option(inputs: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], hint: str) -> None:
    assert hint in refused(capsys, "check", inputs / "task.yaml", *words)


def test_a_link_to_no_file_is_named_as_such(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inputs / "link.jsonl").symlink_to(inputs / "away.jsonl")
    said = refused(capsys, "check", inputs / "task.yaml", "--dataset.train", inputs / "link.jsonl")
    assert f"a link to {inputs / 'away.jsonl'}, which does not exist" in said
    assert "Did you mean 'link.jsonl'" not in said


@pytest.mark.parametrize("name", ["itself", "away", "pipe", "/dev/zero", "./task.yaml/below", "a" * 300])
def test_a_path_that_is_neither_file_nor_folder_is_told_by_what_it_is(
    capsys: pytest.CaptureFixture[str], inputs: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing is opened, which would wait at a pipe and never end at a device, and no hub is asked."""
    monkeypatch.chdir(inputs)
    found = {
        "itself": "a link that leads back to itself (itself -> itself)",
        "away": "a link to nowhere, which does not exist",
        "pipe": "a pipe (FIFO)",
        "/dev/zero": "a device",
        "./task.yaml/below": "a path below task.yaml, which is a file",
    }.get(name, "a name of 300 characters (")
    if not Path("pipe").exists():
        os.mkfifo("pipe")
        Path("itself").symlink_to("itself")
        Path("away").symlink_to("nowhere")
    (inputs / "model.yaml").write_text(TASK.replace("base_model: model", f"base_model: {name}"))
    (inputs / "rows.yaml").write_text(TASK.replace("train: train.jsonl", f"train: {name}"))
    commands: list[tuple[str, ...]] = [
        ("check", name),
        ("check", "model.yaml"),
        ("check", "rows.yaml"),
        ("check", "task.yaml", "--dataset.train", name),
        ("tune", "task.yaml", "-o", name),
        ("init", name, "train.jsonl", "-o", "new.yaml"),
        ("init", "model", name, "-o", "new.yaml"),
        ("init", "model", "train.jsonl", "-o", name),
        ("export", name),
    ]
    if len(name) < 300:
        commands += [("resume", name), ("status", name), ("report", name)]
    for command in commands:
        said = refused(capsys, *command)
        assert found in said.replace(f"{inputs}/", ""), command
        assert "error: 1 problem in the input" in said, command


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_a_place_that_refuses_directories_is_known_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], inputs: Path
) -> None:
    said = refused(capsys, "tune", inputs / "task.yaml", "-o", "/proc/x")
    assert "a path below /proc, wh" in said
    assert "reading and tokenising" not in said
