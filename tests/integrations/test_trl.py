"""A TRL script becomes a task; what cannot be honoured is refused, and nothing is ignored in silence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from peft import LoraConfig, PeftConfig

from cohort.core.errors import InputError
from cohort.integrations.trl import TrlKeys, trl_keys


class SchedulerType(Enum):
    COSINE = "cosine"


@dataclass
class TrainingArguments:
    """Fields and defaults of transformers' class, whose creation needs packages that the tests do not."""

    output_dir: str | None = None
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    num_train_epochs: float = 3.0
    max_steps: int = -1
    lr_scheduler_type: Any = "linear"
    warmup_steps: float = 0
    optim: str = "adamw_torch_fused"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    lr_scheduler_kwargs: Any = None
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    label_smoothing_factor: float = 0.0
    logging_steps: float = 10
    save_steps: int = 500
    bf16: bool | None = None
    seed: int = 42
    data_seed: int | None = None
    report_to: Any = "none"
    debug: Any = ""
    use_cpu: bool = False
    accelerator_config: Any = None
    neftune_noise_alpha: float | None = None
    dataloader_num_workers: int = 0
    dataloader_drop_last: bool = False
    push_to_hub: bool = False
    deepspeed: Any = None

    def __post_init__(self) -> None:
        # as the library completes them
        self.bf16, self.debug, self.accelerator_config = True, [], object()
        if self.load_best_model_at_end and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.metric_for_best_model is not None and self.greater_is_better is None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")


@dataclass
class SFTConfig(TrainingArguments):
    learning_rate: float = 2e-5
    max_length: int | None = 1024
    dataset_text_field: str = "text"
    dataset_kwargs: dict[str, Any] | None = field(default=None)
    completion_only_loss: bool | None = None
    assistant_only_loss: bool = False
    packing: bool = False
    loss_type: str = "nll"


LORA = LoraConfig(r=8, target_modules=["v_proj", "q_proj"], task_type="CAUSAL_LM")


def keys(*, lora: PeftConfig = LORA, columns: set[str] | None = None, **fields: Any) -> TrlKeys:
    return trl_keys(SFTConfig(**fields), lora, columns=frozenset(columns or {"prompt", "completion"}))


def test_what_both_know_is_mapped() -> None:
    found = keys(
        output_dir="runs/mine/",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-4,
        lr_scheduler_type=SchedulerType.COSINE,
        warmup_steps=0.1,
        use_cpu=True,
        report_to=["tensorboard"],
        dataset_text_field="content",
    )
    assert (found.name, found.without_effect) == ("mine", ())
    assert found.sections == {
        "dataset": {
            "on_long_rows": "truncate",
            "max_length": 1024,
            "columns": {"text": "content"},
            "completion_only_loss": True,
        },
        "training": {
            "learning_rate": 1e-4,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "num_train_epochs": 3.0,
            "seed": 42,
            "batch_size": 8,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_epsilon": 1e-8,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.1,
        },
        "lora": {
            "r": 8,
            "lora_alpha": 8,
            "lora_dropout": 0.0,
            "use_rslora": False,
            "target_modules": ["q_proj", "v_proj"],
        },
        "num_gpus": 0,
        "report_to": ["tensorboard"],
    }


@pytest.mark.parametrize("steps", [1, 3, 7, 33])
def test_steps_of_warmup_are_as_many_steps_here(steps: int) -> None:
    ratio = keys(max_steps=100, warmup_steps=steps).sections["training"]["warmup_ratio"]
    assert math.ceil(ratio * 100) == steps


def test_a_constant_rate_has_no_warmup_and_a_constant_one_with_it_has() -> None:
    constant = keys(lr_scheduler_type="constant", warmup_steps=0.1).sections["training"]
    assert (constant["lr_scheduler_type"], "warmup_ratio" in constant) == ("constant", False)
    warmed = keys(lr_scheduler_type="constant_with_warmup", warmup_steps=0.1).sections["training"]
    assert (warmed["lr_scheduler_type"], warmed["warmup_ratio"]) == ("constant", 0.1)


@pytest.mark.parametrize(
    ("columns", "fields", "expected"),
    [
        ({"prompt", "completion"}, {}, True),
        ({"messages"}, {}, False),
        ({"messages"}, {"assistant_only_loss": True}, True),
        ({"prompt", "completion"}, {"completion_only_loss": False}, False),
    ],
)
def test_the_tokens_that_count_are_trls(columns: set[str], fields: dict[str, Any], *, expected: bool) -> None:
    assert keys(columns=columns, **fields).sections["dataset"]["completion_only_loss"] is expected


def test_of_rows_in_files_the_tokens_that_count_have_to_be_said() -> None:
    with pytest.raises(InputError, match="completion_only_loss: found None; allowed: True or False"):
        trl_keys(SFTConfig(), LORA, columns=None)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"packing": True}, r"SFTConfig: packing: found True; allowed: False: .*Write packing=False"),
        ({"neftune_noise_alpha": 5}, "neftune_noise_alpha: found 5; allowed: None: no noise"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        (
            {"metric_for_best_model": "accuracy"},
            "metric_for_best_model: found 'accuracy'; .*metric_for_best_model='loss'",
        ),
        ({"metric_for_best_model": "eval_loss", "greater_is_better": True}, "Write greater_is_better=False"),
        ({"optim": "adafactor"}, "optim: found 'adafactor'"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "the rate of a trial follows from its step alone"),
        ({"warmup_steps": 10}, "warmup_steps: found 10; allowed: a share below 1"),
        ({"max_length": None}, "max_length: found None"),
        ({"data_seed": 3}, "data_seed: found 3"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last: found True; .*each epoch trains on all rows"),
        ({"deepspeed": "ds.json"}, "the base model is not divided over GPUs; num_gpus divides the trials"),
        ({"push_to_hub": True}, "nothing is uploaded"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        keys(**fields)


def test_what_no_task_decides_is_named() -> None:
    found = keys(logging_steps=1, save_steps=50, dataloader_num_workers=4)
    assert found.without_effect == (
        "SFTConfig.logging_steps=1",
        "SFTConfig.save_steps=50",
        "SFTConfig.dataloader_num_workers=4",
    )


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        keys(packing=True, deepspeed="x", lora=LoraConfig(r=8, target_modules=["q_proj"], lora_bias=True))
    assert len(caught.value.problems) == 3


def test_other_objects_are_refused() -> None:
    with pytest.raises(InputError, match=r"SFTConfig: found a value of type dict; .*(.|\n)*LoraConfig: found a value"):
        trl_keys({}, None, columns=None)


@pytest.mark.parametrize(
    "fields",
    [
        {"per_device_train_batch_size": None},
        {"per_device_train_batch_size": "4"},
        {"gradient_accumulation_steps": "2"},
        {"max_steps": "x"},
        {"warmup_steps": "x"},
        {"max_length": "long"},
        {"report_to": 3},
    ],
)
def test_values_of_wrong_types_are_refused(fields: dict[str, Any]) -> None:
    config = SFTConfig(output_dir="runs/mine", **fields)
    with pytest.raises(InputError, match=f"^SFTConfig: {next(iter(fields))}: found"):
        trl_keys(config, LoraConfig(target_modules=["q_proj"]), columns=None)


@pytest.mark.parametrize(
    ("fields", "metric"),
    [
        ({"load_best_model_at_end": True}, "loss"),
        ({"metric_for_best_model": "eval_loss"}, "loss"),
        ({"metric_for_best_model": "eval_rewards/accuracies"}, "reward_accuracy"),
        ({"metric_for_best_model": "rewards/margins", "greater_is_better": True}, "reward_margin"),
    ],
)
def test_the_best_model_at_the_end_is_what_a_sweep_returns(fields: dict[str, Any], metric: str) -> None:
    found = keys(**fields)
    assert found.sections["evaluation"] == {"metric": metric}
    assert found.without_effect == ()


def test_adams_numbers_and_those_of_a_schedule_are_carried() -> None:
    training = keys(
        adam_beta1=0.8,
        adam_beta2=0.95,
        adam_epsilon=1e-6,
        lr_scheduler_type="cosine_with_restarts",
        lr_scheduler_kwargs={"num_cycles": 3},
    ).sections["training"]
    assert [training[key] for key in ("adam_beta1", "adam_beta2", "adam_epsilon")] == [0.8, 0.95, 1e-6]
    assert training["lr_scheduler_type"] == "cosine_with_restarts"
    assert training["lr_scheduler_kwargs"] == {"num_cycles": 3}
    assert not {"adam_beta1", "adam_beta2"} & keys(optim="sgd", adam_beta1=0.8).sections["training"].keys()
