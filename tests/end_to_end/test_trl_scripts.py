"""The commands that TRL's own scripts document become sweeps: parsed by TRL's own parser, trained by Cohort."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import cohort
from cohort.core.errors import InputError
from tests.end_to_end.tiny_tasks import write_inputs

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore")

HERE = ["--max_steps", "2", "--use_cpu", "--bf16", "False", "--report_to", "none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def documented(script: str) -> list[str]:
    """Return the arguments of the command with LoRA that a script's docstring shows."""
    words = importlib.import_module(f"trl.scripts.{script}").__doc__ or ""
    (command,) = (found for found in re.findall(r"```bash\n(.*?)```", words, flags=re.DOTALL) if "--use_peft" in found)
    return shlex.split(command.replace("\\\n", " "))[2:]


def parsed(script: str, arguments: list[str]) -> tuple[Any, Any]:
    """Return what the script gives its trainer: its configuration, and PEFT's."""
    parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
    _, config, model, _ = parser.parse_args_and_config(args=arguments, fail_with_unknown_args=False)
    return config, trl.get_peft_config(model)


def test_the_documented_dpo_command_becomes_a_sweep(folder: Path, tmp_path: Path) -> None:
    config, lora = parsed("dpo", [*documented("dpo"), *HERE])
    # as the script does it: PEFT is to choose the modules
    assert lora.target_modules is None
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}!"} for n in range(24)]
    space = {"beta": [0.05, 0.1], "learning_rate": [1e-4, 1e-3]}
    dataset = {"train": rows[:18], "validation": rows[18:]}
    task = cohort.Task.from_trl(config, lora, space, dataset=dataset, model=folder / "model")
    assert (task.file.objective.type, task.name) == ("dpo", config.output_dir)
    result = cohort.run(task, run_directory=tmp_path / "run")
    assert (result.state, len(result.trials)) == ("done", 4)
    written = json.loads((result.adapter_directory / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"]) == (32, 16)
    assert sorted(written["target_modules"]) == ["q_proj", "v_proj"]
    # two pairs at a time on eight steps
    assert result.trials[0]["parameters"]["batch_size"] == 16


def test_the_documented_sft_command_is_refused_where_it_would_train_something_else(folder: Path) -> None:
    arguments = documented("sft")
    config, lora = parsed("sft", [*arguments, *HERE])
    rows = [{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}] * 4
    with pytest.raises(InputError) as caught:
        cohort.Task.from_trl(config, lora, dataset=rows, model=folder / "model")
    keys = {str(problem.where).rpartition(" ")[2] for problem in caught.value.problems}
    assert keys == {"packing", "eos_token", "push_to_hub"}
    first = arguments.index("--eos_token")
    kept = [word for word in arguments[:first] + arguments[first + 2 :] if word not in ("--packing", "--push_to_hub")]
    config, lora = parsed("sft", [*kept, *HERE])
    task = cohort.Task.from_trl(config, lora, {"r": [8, 32]}, dataset=rows, model=folder / "model")
    assert task.file.training.learning_rate == 2e-4
