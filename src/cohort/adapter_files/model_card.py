"""The README.md of an adapter: a Hugging Face model card that says how to load it and how it was made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from cohort.core.input_values.hub_ids import is_hub_id, split_revision
from cohort.core.units import counted
from cohort.runs.facts import RunFacts
from cohort.runs.records import JsonValue, TrialRecord
from cohort.runs.results.provenance import data_settings, evaluation_settings, linears_text, prompt_template
from cohort.runs.results.reference_baseline import chance_of
from cohort.runs.results.results import RunResults
from cohort.runs.results.verdicts import estimate_text, verdicts
from cohort.training.objectives.declaration import DEFAULT_OBJECTIVE_NAME
from cohort.version import __version__

__all__ = ["render_model_card"]

# the values that vLLM's --max-lora-rank takes
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def _hub_id(base_model: str) -> str | None:
    # the hub refuses a card whose base_model is a local path
    name = split_revision(base_model)[0]
    return name if is_hub_id(name) and not Path(base_model).exists() else None


def _table(rows: Mapping[str, JsonValue], *, headers: tuple[str, str]) -> list[str]:
    lines = [f"| {headers[0]} | {headers[1]} |", "|---|---|"]
    for name, value in rows.items():
        if isinstance(value, dict):
            value = ", ".join(f"{part} {version}" for part, version in value.items())
        shown = value if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
        lines.append(f"| {name} | {shown.replace('|', chr(92) + '|')} |")
    return lines


def _front_matter(*, hub_id: str | None, objective: str) -> list[str]:
    lines = ["---"]
    if hub_id:
        lines.append(f"base_model: {hub_id}")
    lines += ["library_name: peft", "pipeline_tag: text-generation", "tags:", "- lora", "- peft", "- cohort"]
    lines.append(f"- {objective}")
    if hub_id:
        lines.append(f"- base_model:adapter:{hub_id}")
    return [*lines, "---", ""]


def _quantised(facts: RunFacts) -> list[str]:
    """Return what a reader must know of a base model that was quantised for training; nothing for another."""
    kept = (facts.task.document or {}).get("quantization", "none")
    if kept == "none":
        return []
    return [
        f"It was trained, and measured, on the base model with its linear layers in {kept} (`quantization: {kept}`). "
        "It loads on the base model as published as well, where losses differ a little.",
        "",
    ]


def _loading(*, base_model: str, r: int, nblocks: int, has_whole_modules: bool) -> list[str]:
    # vLLM refuses ranks above its limit and takes only certain values for it
    max_rank = next((rank for rank in _VLLM_RANKS if rank >= r), r)
    name, revision = split_revision(base_model)
    base = json.dumps(name) + ("" if revision is None else f", revision={json.dumps(revision)}")
    return [
        "## Loading",
        "",
        "With PEFT:",
        "",
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"model = AutoModelForCausalLM.from_pretrained({base})",
        'model = PeftModel.from_pretrained(model, "PATH/TO/THIS/FOLDER")',
        'tokenizer = AutoTokenizer.from_pretrained("PATH/TO/THIS/FOLDER")',
        "```",
        "",
        *(_VLLM_MERGED if has_whole_modules else _with_vllm(base_model, max_rank=max_rank, nblocks=nblocks)),
    ]


_VLLM_MERGED = (
    "It has an embedding or a head of its own (`modules_to_save`), which vLLM loads from no adapter. "
    "Serve the model that `cohort export RUN_DIR --to merged` writes.",
    "",
)


def _with_vllm(base_model: str, *, max_rank: int, nblocks: int) -> list[str]:
    name, revision = split_revision(base_model)
    model = name if revision is None else f"{name} --revision {revision}"
    return [
        *(_without_blocks(nblocks) if nblocks > 1 else ["With vLLM:", ""]),
        "```sh",
        f"vllm serve {model} --enable-lora --max-lora-rank {max_rank} --lora-modules adapter=PATH/TO/THIS/FOLDER",
        "```",
        "",
    ]


def _without_blocks(nblocks: int) -> list[str]:
    return [
        f"This is a BD-LoRA adapter of {nblocks} blocks: PEFT 0.19 or later loads it. vLLM releases without BD-LoRA "
        "load it without an error and compute something else. Export it with `cohort export RUN_DIR --to lora` for "
        "them, which changes nothing in what it computes:",
        "",
    ]


def _whole(value: JsonValue, default: int) -> int:
    return int(value) if isinstance(value, int | float) else default


def _outcome(results: RunResults, trial: TrialRecord) -> dict[str, JsonValue]:
    outcome: dict[str, JsonValue] = {}
    finals = results.facts.finals
    final = None if finals is None else finals.of_trial(trial.trial_id)
    rows = f"{n} validation rows" if (n := results.facts.inputs.evaluation_rows) else "validation rows"
    if finals is not None and final is not None:
        for name, found in final.values.items():
            outcome["validation loss" if name == "loss" else name] = estimate_text(found)
        for name, found in ({} if finals.base is None else finals.base.values).items():
            if chance_of(results.facts, metric=name) is not None:
                # 0 by definition
                continue
            outcome[f"{'validation loss' if name == 'loss' else name} of the base model"] = estimate_text(found)
    else:
        if trial.best_loss is not None:
            outcome[f"validation loss on {rows}"] = trial.best_loss
        outcome.update({f"{name} on {rows}": value for name, value in trial.best_metrics.items()})
        if results.base_value is not None and results.chance is None:
            outcome[f"{results.metric_label} of the base model on {rows}"] = results.base_value
    outcome["at step"] = trial.best_step if trial.best_step is not None else trial.steps_done
    return outcome


def _notes(results: RunResults, trial: TrialRecord) -> list[str]:
    """Return what the comparison at the end says of the run's best adapter; nothing for another one."""
    finals = results.facts.finals
    if finals is None or finals.winner.trial_id != trial.trial_id:
        return []
    test = results.facts.test
    tested = [] if test is None else [f"On {test.rows_text}, which no earlier step has read:", ""]
    if test is not None:
        outcome: dict[str, JsonValue] = {name: estimate_text(found) for name, found in test.winner.values.items()}
        tested += [*_table(outcome, headers=("metric", "value")), ""]
    chosen = f"Chosen among {counted(len(finals.ranked), 'finalist')} on {finals.rows_text}. "
    sentences = "".join(f" {sentence[0].upper()}{sentence[1:]}." for sentence in verdicts(results))
    return [f"{chosen}In parentheses: the 95 % interval over other rows of the kind.{sentences}", "", *tested]


def _template(template: str | None) -> list[str]:
    if template is None:
        return []
    # longer than any run of backticks in the template, which would end the block
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", template)), default=0))
    return ["The prompt of a row, with its columns in braces:", "", f"{fence}text", template, fence, ""]


def _numerics(facts: RunFacts) -> str | None:
    """Return what a GPU computed with, and why where the task left it to the machine."""
    reason = facts.machine.numerics_reason
    return facts.machine.numerics if reason is None else f"{facts.machine.numerics}: {reason}"


def _settings_in_force(trial: TrialRecord, *, facts: RunFacts) -> dict[str, JsonValue]:
    """Return the hyperparameters that the trial was trained with, its own before those that all trials share."""
    shared = dict(facts.task.training or {})
    if shared.get("max_steps") is not None:
        # it overrides the epochs, which would contradict the steps
        shared.pop("num_train_epochs", None)
    return {**trial.parameters, **{name: value for name, value in shared.items() if name not in trial.parameters}} | {
        "seed": trial.seed
    }


def render_model_card(results: RunResults, *, trial_id: int) -> str:
    """Return the model card of one trial's adapter.

    Raises:
        KeyError: the run has no such trial.
    """
    # the card names the place in the ranking, so a reader sees how selected the adapter is
    place = {entry.trial.trial_id: entry for entry in results.ranked}[trial_id]
    trial, facts = place.trial, results.facts
    base_model = facts.places.base_model or "BASE_MODEL"
    task, objective = facts.task_name or "task", facts.task.objective or DEFAULT_OBJECTIVE_NAME
    r = trial.parameters.get("r")
    settings = _settings_in_force(trial, facts=facts)
    recorded: dict[str, JsonValue] = {
        "adapted": linears_text(facts),
        "data hash": facts.inputs.data_hash,
        "model hash": facts.inputs.model_hash,
        "task hash": facts.task.task_hash,
        "backend": facts.machine.backend,
        "precision": facts.machine.precision,
        "numerics": _numerics(facts),
        "versions": None if facts.machine.versions is None else dict(facts.machine.versions),
    }
    origin = {name: value for name, value in recorded.items() if value is not None}
    lines = [
        *_front_matter(hub_id=_hub_id(base_model), objective=objective),
        f"# LoRA adapter: {task}",
        "",
        f"A LoRA adapter for `{base_model}`, the result of trial {trial_id} in a sweep of "
        f"{counted(len(results.ranked), 'configuration')} (place {place.rank}: {place.why}). "
        f"Trained with Cohort {__version__}.",
        "",
        "## Outcome",
        "",
        *_table(_outcome(results, trial), headers=("metric", "value")),
        "",
        *_notes(results, trial),
        "## Hyperparameters",
        "",
        *_table(settings, headers=("name", "value")),
        "",
        "## Data",
        "",
        *_table(data_settings(facts), headers=("what", "value")),
        "",
        *_template(prompt_template(facts)),
        "## Evaluation",
        "",
        *_table(evaluation_settings(facts), headers=("what", "value")),
        "",
        *_loading(
            base_model=base_model,
            r=_whole(r, 16),
            nblocks=_whole(settings.get("nblocks"), 1),
            has_whole_modules=facts.inputs.whole_modules is not None,
        ),
        *_quantised(facts),
        "## Provenance",
        "",
        *_table(
            {**origin, "optimizer steps": f"{trial.steps_done} of {trial.planned_steps}"}, headers=("what", "value")
        ),
        "",
    ]
    return "\n".join(lines)
