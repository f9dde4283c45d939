"""What the keys of a task file are called elsewhere: names that are accepted, and names that a hint translates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from cohort.core.source_location import KeyPath
from cohort.tuning.early_exit.settings import OTHER_WORDS as EXIT_WORDS

__all__ = ["ACCEPTED", "NOT_NEEDED", "OTHER_WORDS", "checkpointing_word", "nearest_hint", "own_word", "use_own_names"]

ACCEPTED: Mapping[KeyPath, KeyPath] = {
    ("base_model",): ("model_name_or_path",),
    # where TRL has it, as a switch
    ("training", "gradient_checkpointing"): ("memory", "gradient_checkpointing"),
}
"""Other names that mean exactly the same, with ours."""

OTHER_WORDS = {
    "model": "model_name_or_path",
    "model_name": "model_name_or_path",
    "base_model_name_or_path": "model_name_or_path",
    "datasets": "dataset.train",
    "train_file": "dataset.train",
    "dataset_name": "dataset.train",
    "val_file": "dataset.validation",
    "eval_dataset": "dataset.validation",
    "eval": "dataset.validation",
    "train_dataset": "dataset.train",
    "val_set_size": "dataset.validation",
    "test_size": "dataset.validation",
    "validation_split": "dataset.validation",
    "type": "dataset.format",
    "dataset_weights": "dataset.weights",
    "mixing_weights": "dataset.weights",
    "sequence_len": "dataset.max_length",
    "max_seq_length": "dataset.max_length",
    "cutoff_len": "dataset.max_length",
    "interleave_probs": "dataset.weights",
    "mask_history": "dataset.trained_turns",
    "train_on_inputs": "dataset.completion_only_loss",
    "lora_r": "lora.r",
    "rank": "lora.r",
    "lora_rank": "lora.r",
    "alpha": "lora.lora_alpha",
    "dropout": "lora.lora_dropout",
    "lora_target_modules": "lora.target_modules",
    "lora_target_linear": "lora.target_modules",
    **dict.fromkeys(("lora_model_dir", "adapter_name_or_path"), "lora.adapter_name_or_path"),
    "lr": "training.learning_rate",
    "epochs": "training.num_train_epochs",
    "num_epochs": "training.num_train_epochs",
    "steps": "training.max_steps",
    "micro_batch_size": "training.batch_size",
    "per_device_train_batch_size": "training.batch_size",
    "train_batch_size": "training.batch_size",
    "lr_scheduler": "training.lr_scheduler_type",
    "scheduler": "training.lr_scheduler_type",
    "optimizer": "training.optim",
    "gradient_clipping": "training.max_grad_norm",
    "random_seed": "training.seed",
    "metric_for_best_model": "evaluation.metric",
    "compute_metrics": "evaluation.metric",
    "compute_loss_func": "objective",
    "loss": "objective",
    "grpo": "objective",
    "kl_coef": "objective.beta",
    "kl_loss_coef": "objective.beta",
    "clip_ratio": "objective.epsilon",
    "group_size": "objective.num_generations",
    "max_response_length": "objective.max_completion_length",
    "max_prompt_length": "dataset.max_length",
    **dict.fromkeys(("reward_funcs", "reward_functions", "reward_weights"), "rewards"),
    "n_trials": "search.trials",
    "num_trials": "search.trials",
    "search_space": "search.space",
    "activation_checkpointing": "memory.gradient_checkpointing",
    "gpus": "num_gpus",
    "device": "num_gpus",
    "eval_steps": "evaluation.every_fraction",
    **{word: f"early_exit.{key}" for word, key in EXIT_WORDS.items()},
    "warmup_steps": "training.warmup_ratio",
}
"""Names of other tools, with our key. They are not accepted, because there the value may mean something else."""

NOT_NEEDED = {
    "gradient_accumulation_steps": "batch_size is the whole optimizer step; it is split to fit the memory by itself",
    "use_vllm": "answers are drawn by the weights that are trained, in the same memory",
    "importance_sampling_level": "objective.loss_type: gspo has one ratio for a whole answer",
    "per_device_eval_batch_size": "evaluation is packed to fit the memory by itself",
    # TRL's key of this name is about rows; ours, outside of the sections, about trials
    **dict.fromkeys(
        ("sample_packing", "dataset.packing", "training.packing"), "rows are always packed, and never see each other"
    ),
    **dict.fromkeys(
        ("revision", "model_revision"),
        "a revision of the hub stands behind the model's name: model_name_or_path: OWNER/MODEL@REVISION",
    ),
    "trust_remote_code": "code of a checkpoint runs only where COHORT_TRUST_REMOTE_CODE names the model",
    "output_dir": "the run directory is given on the command line: -o RUN_DIR",
    "flash_attention": "the attention is chosen for the machine; `cohort doctor` shows it",
    "attn_implementation": "the attention is chosen for the machine; `cohort doctor` shows it",
    "bf16": "the precision follows the model's files and the machine; `cohort doctor` shows it",
    "fp16": "the precision follows the model's files and the machine; `cohort doctor` shows it",
    "peft_type": "adapters are LoRA; lora.use_dora, lora.use_vera and lora.use_bdlora choose its variants",
    "lora_bias": "adapters have no biases, which vLLM would not load",
    "bias": "adapters have no biases, and those of the base model stay frozen",
    "logging_steps": "every step is recorded",
    "save_steps": "the state is saved by time, and whenever a run is interrupted",
    "load_in_4bit": "quantization: nf4 keeps the base model in 4 bits",
    "use_4bit": "quantization: nf4 keeps the base model in 4 bits",
    "load_in_8bit": "quantization: int8 keeps the base model in 8 bits",
    **dict.fromkeys(
        ("quantization_config", "quantization_bit", "bnb_4bit_quant_type"),
        "quantization: nf4 | int8 | fp8 says how the base model is kept",
    ),
    "bnb_4bit_compute_dtype": "a quantised base model computes in bfloat16 on a GPU and in float32 on a CPU",
    "bnb_4bit_use_double_quant": "quantization: nf4 always quantises its scales a second time",
    "adapter": "every trial trains a LoRA adapter; lora.use_dora, use_vera and use_bdlora choose its variants",
    "task_type": "the models are causal language models",
    **dict.fromkeys(
        ("eval_strategy", "evaluation_strategy"),
        "trials are evaluated at shares of their steps: evaluation.every_fraction",
    ),
    "save_strategy": "the state is saved by time, and the best of each trial is kept",
    "num_to_keep": "save_total_limit says how many trials that lost keep their best checkpoint",
    "save_top_k": "save_total_limit says how many trials that lost keep their best checkpoint",
    **dict.fromkeys(
        ("early_stopping", "early_stopping_patience"), "early_exit.rule says which trials end early, patience is one"
    ),
    **dict.fromkeys(("wandb_project", "use_wandb"), "report_to: wandb sends the run there"),
    "direction": "evaluation.metric knows whether less or more is better",
    "study_name": "the run directory names the search: -o RUN_DIR",
    "neftune_noise_alpha": "no noise is added to embeddings, which all trials share",
    "group_by_length": "rows are packed without padding, whatever their order",
}
"""Settings that have no counterpart, and why."""


def use_own_names(data: dict[str, Any], lines: dict[KeyPath, int]) -> list[tuple[KeyPath, KeyPath]]:
    """Replace accepted names by our keys, in place; return the names that contradict a key that is there."""
    for name, section in data.items():
        # sections are the caller's: only their copies change
        data[name] = dict(section) if isinstance(section, Mapping) else section
    contradictions = []
    for written, key in ACCEPTED.items():
        source = _section(data, written)
        if source is None or written[-1] not in source:
            continue
        # only now, so that a task without other names keeps the sections it has
        if len(key) > 1 and data.get(str(key[0])) is None:
            data[str(key[0])] = {}
        target = _section(data, key)
        if target is None:
            continue
        value = source.pop(str(written[-1]))
        if checkpointing_word(target.setdefault(str(key[-1]), value)) != checkpointing_word(value):
            contradictions.append((written, key))
        elif written in lines:
            lines.setdefault(key, lines[written])
    return contradictions


def checkpointing_word(value: object) -> object:
    """Return the word for TRL's switch; any other value as it is."""
    return ("always" if value else "never") if isinstance(value, bool) else value


def _section(data: dict[str, Any], path: KeyPath) -> dict[str, Any] | None:
    section = data if len(path) == 1 else data.get(str(path[0]))
    return section if isinstance(section, dict) else None


def own_word(word: str) -> str:
    """Return our key, without its section, for a name of another tool; empty for any other word."""
    return OTHER_WORDS.get(word.lower(), "").rpartition(".")[2]


def nearest_hint(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return the advice for an unknown word: the nearest known one, or to remove it."""
    # another tool's word is known to mean our key; likeness of letters is a guess
    known = list(known)
    own = own_word(word)
    near = [own] if own in known else get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f"Did you mean {prefix}{near[0]}? Rename it, or remove it." if near else "Remove it."
