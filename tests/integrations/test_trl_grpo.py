"""A GRPO script becomes a sweep: TRL's own configuration is mapped, or refused with a reason; its rewards are kept."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from cohort.core.errors import InputError
from cohort.integrations.trl import trl_keys
from cohort.training.objectives import OBJECTIVES
from tests.end_to_end.tiny_tasks import write_inputs

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore")

LORA = LoraConfig(r=8, target_modules=["q_proj"], task_type="CAUSAL_LM")


def short(completions: list[str], **columns: Any) -> list[float]:
    return [1.0 / (1 + len(text)) for text in completions]


def config_of(**fields: Any) -> Any:
    return trl.GRPOConfig(output_dir="runs/mine", use_cpu=True, bf16=False, report_to="none", **fields)


def sections_of(reward_funcs: Any = short, **fields: Any) -> Any:
    return trl_keys(config_of(**fields), LORA, columns=None, reward_funcs=reward_funcs).sections


def test_defaults_are_trls_defaults() -> None:
    sections = sections_of()
    objective = sections["objective"]
    assert objective.pop("type") == "grpo"
    ours = OBJECTIVES["grpo"]
    # the length is the one default that differs: TRL's is for GPUs
    assert objective.pop("max_completion_length") == 512
    for name, value in objective.items():
        assert getattr(ours, name) == value, name
    # 8 completions are one prompt of 8 answers
    assert sections["training"]["batch_size"] == 1
    assert sections["training"]["learning_rate"] == 1e-6
    assert sections["rewards"] == [{"function": short, "weight": 1.0}]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"loss_type": "gspo"}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"loss_type": "cispo", "epsilon_high": 5.0}),
        ({"beta": 0.04, "delta": 2.0}, {"beta": 0.04, "delta": 2.0}),
        ({"scale_rewards": False}, {"scale_rewards": "none"}),
        ({"scale_rewards": "batch", "num_iterations": 2}, {"scale_rewards": "batch", "num_iterations": 2}),
        ({"temperature": 0.7, "top_p": 0.9, "max_completion_length": 64}, {"temperature": 0.7, "top_p": 0.9}),
        ({"mask_truncated_completions": True}, {"mask_truncated_completions": True}),
    ],
)
def test_each_field_is_the_key_of_its_name(fields: dict[str, Any], found: dict[str, Any]) -> None:
    objective = sections_of(**fields)["objective"]
    assert {name: objective[name] for name in found} == found


def test_weights_and_steps_of_several_groups() -> None:
    sections = sections_of(
        [short, "my.rewards:exact"],
        reward_weights=[0.2, 1.0],
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        num_generations=4,
    )
    assert sections["rewards"] == [
        {"function": short, "weight": 0.2},
        {"function": "my.rewards:exact", "weight": 1.0},
    ]
    assert sections["training"]["batch_size"] == 8


@pytest.mark.parametrize(
    ("fields", "key", "words"),
    [
        ({"loss_type": "sapo"}, "loss_type", "one of grpo, dr_grpo, dapo, cispo"),
        ({"loss_type": "dapo", "importance_sampling_level": "sequence"}, "importance_sampling_level", "GSPO"),
        ({"loss_type": "cispo"}, "epsilon_high", "such as 5.0"),
        ({"top_k": 50}, "top_k", "no counterpart"),
        ({"sync_ref_model": True}, "sync_ref_model", "no counterpart"),
        ({"entropy_coef": 0.01}, "entropy_coef", "no counterpart"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation", "no counterpart"),
        ({"steps_per_generation": 4}, "steps_per_generation", "for each optimizer step"),
        (
            {
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 3,
                "num_generations": 6,
                "steps_per_generation": 3,
            },
            "",
            "",
        ),
        ({"reward_weights": [1.0, 2.0]}, "reward_weights", "a weight for each of 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any], key: str, words: str) -> None:
    if not key:
        # whole groups in a step, though not in a batch of the device
        assert sections_of(**fields)["training"]["batch_size"] == 2
        return
    with pytest.raises(InputError) as caught:
        sections_of(**fields)
    (problem,) = caught.value.problems
    assert str(problem.where) == f"GRPOConfig: {key}"
    assert words in str(problem)


@pytest.mark.parametrize("reward_funcs", [None, "org/reward-model", [short, 3]])
def test_rewards_have_to_be_functions(reward_funcs: Any) -> None:
    with pytest.raises(InputError, match="reward_funcs"):
        sections_of(reward_funcs)
    config = trl.SFTConfig(output_dir="runs/mine", use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(InputError, match="reward_funcs with a SFTConfig"):
        trl_keys(config, LORA, columns=None, reward_funcs=short)


# as TRL's documentation has it, its length apart; the two statements that change are marked
SCRIPT = """
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig
import cohort

dataset = Dataset.from_list([{"prompt": f"Say {n}", "ground_truth": str(n)} for n in range(20)])

def reward_num_unique_chars(completions, **kwargs):
    return [float(len(set(c))) for c in completions]

training_args = GRPOConfig(
    output_dir="Qwen2-0.5B-GRPO", logging_steps=10, num_generations=4, per_device_train_batch_size=4,
    max_completion_length=6, max_steps=2, use_cpu=True, bf16=False,
)
lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
trainer = cohort.Task.from_trl(  # was: trainer = GRPOTrainer(
    training_args, lora, {"learning_rate": [1e-5, 1e-3]},
    model=MODEL,
    reward_funcs=reward_num_unique_chars,
    dataset=dataset,
)
result = cohort.run(trainer, run_directory=RUN, progress=False)  # was: trainer.train()
"""


def test_the_example_of_trls_documentation_runs_as_a_sweep(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "inputs")
    text = SCRIPT.replace("MODEL", repr(str(folder / "model"))).replace("RUN", repr(str(tmp_path / "run")))
    (tmp_path / "grpo_script.py").write_text(text)
    found = runpy.run_path(str(tmp_path / "grpo_script.py"), run_name="__main__")
    task, result = found["trainer"], found["result"]
    assert task.name == "Qwen2-0.5B-GRPO"
    assert task.file.objective.values["max_completion_length"] == 6
    (own,) = task.file.rewards.functions
    assert own.name == "reward_num_unique_chars"
    assert result.metrics["reward"] > 0
    assert (result.adapter_directory / "adapter_model.safetensors").is_file()
