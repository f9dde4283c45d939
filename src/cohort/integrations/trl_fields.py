"""A configuration's fields: each is mapped, refused, or known to change nothing that a task decides."""

from __future__ import annotations

import dataclasses
from typing import Any

from cohort.core.errors import Problem
from cohort.core.source_location import Place

__all__ = ["ConfigFields", "are_names", "word_of"]

# how work is done, shown, stored or split over machines: Cohort decides it itself, and it leaves an adapter as it is
_NO_EFFECT = """
    bf16 fp16 bf16_full_eval fp16_full_eval tf32 gradient_checkpointing gradient_checkpointing_kwargs torch_compile
    torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache torch_empty_cache_steps
    auto_find_batch_size disable_tqdm run_name project average_tokens_across_devices eval_strategy evaluation_strategy
    eval_steps eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches
    eval_use_gather_object eval_accumulation_steps batch_eval_metrics eval_packing save_strategy save_steps
    save_on_each_node save_total_limit save_only_model save_safetensors enable_jit_checkpoint
    ignore_data_skip restore_callback_states_from_checkpoint full_determinism accelerator_config
    remove_unused_columns length_column_name debug skip_memory_metrics do_train do_eval do_predict local_rank
    overwrite_output_dir logging_dir dataset_num_proc dataset_batch_size shuffle_dataset padding_free packing_strategy
    pad_token activation_offloading include_num_input_tokens_seen include_tokens_per_second
"""
# of preference configurations: the reference is computed once and kept in any case; the rest is about encoders, which a
# causal model does not have
_NO_EFFECT_OF_PREFERENCES = """
    precompute_ref_log_probs precompute_ref_batch_size generate_during_eval is_encoder_decoder padding_value
    max_prompt_length max_completion_length label_pad_token_id use_logits_to_keep ref_model_mixup_alpha
    ref_model_sync_steps f_alpha_divergence_coef discopop_tau train_sampling_strategy
"""
# of GRPOConfig: answers are drawn here by the weights that are trained, in whatever way
_NO_EFFECT_OF_SAMPLING = """
    use_vllm num_generations_eval num_completions_to_print cache_implementation use_transformers_paged
    use_transformers_continuous_batching transformers_continuous_batching_config ds3_gather_for_generation
"""
_NO_EFFECT_PREFIXES = ("logging_", "log_", "dataloader_", "ddp_", "trackio_", "hub_", "vllm_")
# set by the libraries themselves
_INTERNAL = (
    "accelerator_config peft_version inference_mode runtime_config megatron_core disable_tqdm bf16 pad_to_multiple_of "
    # use_cpu turns it off
    "dataloader_pin_memory"
)

_REASONS = {
    "packing": "blocks of max_length tokens would count as examples; rows are packed for speed in any case",
    "neftune_noise_alpha": "no noise is added to embeddings",
    "label_smoothing_factor": "the loss is the plain negative log-likelihood",
    "loss_type": "the loss is the plain negative log-likelihood",
    "dataloader_drop_last": "each epoch trains on all rows",
    "deepspeed": "the base model is not divided over GPUs; num_gpus divides the trials",
    "fsdp": "the base model is not divided over GPUs; num_gpus divides the trials",
    "push_to_hub": "nothing is uploaded; upload the folder best/ of the run",
    "resume_from_checkpoint": "trials begin with new adapters; cohort.resume continues a run",
    "truncation_mode": "long rows are cut at their end",
    "model_init_kwargs": "the model is loaded as its files say",
    "trust_remote_code": "model code of the hub is not run",
    "chat_template_path": "the template is an argument: dataset={'train': ..., 'chat_template': PATH}",
    "eos_token": "the end of an answer is the tokenizer's; write it there",
    "ensure_weight_tying": "trained copies of embedding and head are two tables, as by PEFT's default",
    "bias": "adapters have no biases",
    "lora_bias": "adapters have no biases",
}
_UNKNOWN = "this version of Cohort has no counterpart"


class ConfigFields:
    """A configuration's fields, and what is wrong with them."""

    def __init__(self, name: str, config: Any) -> None:
        self.name, self._values = name, {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        self._defaults = {f.name: _default(f) for f in dataclasses.fields(config)}
        self.problems: list[Problem] = []
        self.without_effect: list[str] = []

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def has(self, key: str) -> bool:
        return key in self._values

    def refuse(self, key: str, *, allowed: str, hint: str) -> None:
        where = Place(file=self.name, key=(key,))
        self.problems.append(Problem(where=where, found=repr(self._values.get(key)), allowed=allowed, hint=hint))

    def refuse_others(self, mapped: str) -> None:
        """Refuse what is set and not mapped, and note what is set and without effect."""
        for key, value in self._values.items():
            if key in mapped.split() or self._is_default(key):
                continue
            is_idle = key in (_NO_EFFECT + _NO_EFFECT_OF_PREFERENCES + _NO_EFFECT_OF_SAMPLING).split() or (
                key.startswith(_NO_EFFECT_PREFIXES) and key not in _REASONS
            )
            if not is_idle:
                default = self._defaults[key]
                self.refuse(
                    key, allowed=f"{default!r}: {_REASONS.get(key, _UNKNOWN)}", hint=f"Write {key}={default!r}."
                )
            elif key not in _INTERNAL.split():
                self.without_effect.append(f"{self.name}.{key}={value!r}")

    def _is_default(self, key: str) -> bool:
        value, default = self._values[key], self._defaults[key]
        value = getattr(value, "value", value)
        # libraries write [] or {} where None was the default
        return key in _INTERNAL.split() or value == getattr(default, "value", default) or (not default and not value)


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def are_names(values: object) -> bool:
    """Whether a value is a list of words."""
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def word_of(value: Any) -> str | None:
    """Return the word of an enum or of text."""
    value = getattr(value, "value", value)
    return None if value is None else str(value)
