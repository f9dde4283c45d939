"""What TRL's ``GRPOConfig`` and the trainer's ``reward_funcs`` say, in the words of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.core.errors import Problem
from cohort.core.source_location import Place
from cohort.integrations.trl_fields import ConfigFields
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS

__all__ = ["GRPO_CONFIG", "GRPO_FIELDS", "grpo_objective", "prompts_of_a_step", "reward_problems", "rewards_of"]

GRPO_CONFIG = "GRPOConfig"
"""By the name of its class: trl does not have to be installed."""

_SAME = (
    *("num_generations", "temperature", "top_p", "max_completion_length", "beta", "num_iterations", "epsilon"),
    *("use_bias_correction_kl", "mask_truncated_completions"),
)
# ours are 0 where TRL's are None
_NONE_IS_ZERO = ("epsilon_high", "delta")
GRPO_FIELDS = f"""
    {" ".join((*_SAME, *_NONE_IS_ZERO))} loss_type importance_sampling_level scale_rewards reward_weights
    disable_dropout steps_per_generation generation_batch_size
"""
# as GRPOConfig has them
_BY_SEQUENCE = "sequence"


def grpo_objective(fields: ConfigFields) -> dict[str, Any]:
    """Return the ``objective`` section that a configuration means; what cannot be honoured is refused in ``fields``."""
    found: dict[str, Any] = {"type": "grpo", **{name: fields.get(name) for name in _SAME if fields.has(name)}}
    found |= {name: value for name in _NONE_IS_ZERO if (value := fields.get(name)) is not None}
    declared = OBJECTIVE_DECLARATIONS.find("grpo")
    assert declared is not None, "grpo is one of Cohort's own"
    kind = fields.get("loss_type")
    # those of other papers have keys of their own, and gspo is another field in TRL
    known = [name for name in declared.values["loss_type"].setting.options if name in _TRL_LOSSES]
    if kind not in known:
        fields.refuse("loss_type", allowed=f"one of {', '.join(known)}", hint=f"Write loss_type={known[0]!r}.")
        return found
    if fields.get("importance_sampling_level") == _BY_SEQUENCE:
        if kind != "grpo":
            allowed = "'token', or 'sequence' with loss_type='grpo', which is GSPO"
            fields.refuse("importance_sampling_level", allowed=allowed, hint="Write loss_type='grpo'.")
        kind = "gspo"
    if kind == "cispo" and fields.get("epsilon_high") is None:
        allowed = "the largest ratio, such as 5.0: without it no ratio would count more than epsilon"
        fields.refuse("epsilon_high", allowed=allowed, hint="Write epsilon_high=5.0.")
    scale = fields.get("scale_rewards")
    # switches in earlier versions
    found["scale_rewards"] = {True: "group", False: "none"}.get(scale, scale) if isinstance(scale, bool) else scale
    return {**found, "loss_type": kind}


_TRL_LOSSES = ("grpo", "dr_grpo", "dapo", "cispo")


def prompts_of_a_step(fields: ConfigFields, *, num_completions: int) -> int:
    """Return the prompts of an optimizer step, which ``batch_size`` counts; TRL's batch size counts completions."""
    size = fields.get("num_generations") or 1
    steps, accumulated = fields.get("steps_per_generation"), fields.get("gradient_accumulation_steps") or 1
    if steps is not None and steps != accumulated:
        allowed = f"{accumulated}, as gradient_accumulation_steps: answers are drawn for each optimizer step"
        fields.refuse("steps_per_generation", allowed=allowed, hint="Leave it out.")
    if num_completions % size:
        allowed = f"a multiple of num_generations={size}, gradient_accumulation_steps={accumulated} included"
        hint = f"Write per_device_train_batch_size={size}, so that an optimizer step has whole groups."
        fields.refuse("per_device_train_batch_size", allowed=allowed, hint=hint)
    return max(1, num_completions // size)


def rewards_of(fields: ConfigFields, reward_funcs: Any) -> list[dict[str, Any]]:
    """Return the ``rewards`` section's functions, with the configuration's weights."""
    functions = _listed(reward_funcs)
    weights = fields.get("reward_weights")
    if weights is not None and len(weights) != len(functions):
        allowed = f"a weight for each of {len(functions)} reward functions"
        fields.refuse("reward_weights", allowed=allowed, hint="Write one for each, in their order.")
        weights = None
    weights = [1.0] * len(functions) if weights is None else list(weights)
    return [{"function": own, "weight": float(weight)} for own, weight in zip(functions, weights, strict=True)]


def reward_problems(reward_funcs: Any) -> list[Problem]:
    """Return why ``reward_funcs`` cannot be rewards of a task."""
    where = Place(text="Task.from_trl: reward_funcs")
    allowed = "a function of prompts and completions, or a list of them"
    functions = _listed(reward_funcs)
    if not functions:
        hint = "Write reward_funcs=..., as the trainer has them."
        return [Problem(where=where, found="nothing", allowed=allowed, hint=hint)]
    hint = "Write a function that asks the model; reward models are not loaded."
    return [
        Problem(where=where, found=repr(own)[:80], allowed=allowed, hint=hint)
        for own in functions
        # a text is a model's name to TRL; ours have a colon
        if not (isinstance(own, str) and ":" in own) and (not callable(own) or hasattr(own, "forward"))
    ]


def _listed(reward_funcs: Any) -> Sequence[Any]:
    if reward_funcs is None:
        return []
    return list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
