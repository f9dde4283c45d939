"""What an adapter was trained on and how it was measured, from a run's record, for its card and the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cohort.core.units import counted
from cohort.runs.facts import RunFacts
from cohort.runs.records import JsonValue
from cohort.tuning.objective_metric import LOSS

__all__ = ["data_settings", "evaluation_settings", "linears_text", "prompt_template"]

# the comparison at the end names its rows by itself
_ROWS = "validation rows, during training"
# nothing is generated for a loss
_OF_GENERATION = ("max_new_tokens", "normalize", "answer_pattern", "greater_is_better")


def data_settings(facts: RunFacts) -> dict[str, JsonValue]:
    """Return the rows of a run: files, hashes, counts, and every setting of the dataset but the prompt template."""
    section = dict(_section(facts, "dataset"))
    section.pop("prompt_template", None)
    inputs = facts.inputs
    found: dict[str, JsonValue] = {}
    for key in ("train", "validation", "test"):
        if (value := section.pop(key, None)) is not None:
            found[key] = _without_home(value)
    hashes = {"train": inputs.train_input, "validation": inputs.validation_input, "test": inputs.test_input}
    for name, split in hashes.items():
        # a share of the training rows has no files
        if split is not None and split.num_rows_read:
            found[f"hash of the {name} files"] = split.files_hash
    counts = dict(inputs.data_counts or {})
    found |= {name.replace("_", " "): count for name, count in counts.items()}
    if inputs.data_format is not None:
        found["format"] = inputs.data_format
    if inputs.is_chat:
        found.setdefault("rendered by", "the chat template of the tokenizer in this folder")
    section.pop("format", None)
    return found | {name: value for name, value in section.items() if value not in (None, {}, [])}


def prompt_template(facts: RunFacts) -> str | None:
    """Return the template that made prompts out of columns; None where rows had prompts."""
    template = _section(facts, "dataset").get("prompt_template")
    return template if isinstance(template, str) else None


def evaluation_settings(facts: RunFacts) -> dict[str, JsonValue]:
    """Return how the trials of a run were measured."""
    found: dict[str, JsonValue] = {"metric": facts.metric}
    if facts.inputs.evaluation_rows is not None:
        found[_ROWS] = facts.inputs.evaluation_rows
    if facts.finals is not None:
        found["finalists"] = f"{counted(len(facts.finals.ranked), 'trial')} on {facts.finals.rows_text}"
    if facts.test is not None:
        found["test"] = f"the chosen adapter on {facts.test.rows_text}"
    section = _section(facts, "evaluation")
    is_loss = facts.metric == LOSS.name and not section.get("metrics")
    hidden = (*found, "finalists", *(_OF_GENERATION if is_loss else ()))
    return found | {
        name: value for name, value in section.items() if name not in hidden and value not in (None, {}, [])
    }


def linears_text(facts: RunFacts) -> str | None:
    """Return ``14 linears: k_proj, q_proj``; None where the record has none."""
    paths = facts.inputs.target_modules
    if not paths:
        return None
    return f"{counted(len(paths), 'linear')}: {', '.join(sorted({path.rsplit('.', 1)[-1] for path in paths}))}"


def _section(facts: RunFacts, name: str) -> Mapping[str, JsonValue]:
    section = (facts.task.document or {}).get(name)
    return section if isinstance(section, dict) else {}


def _without_home(value: JsonValue) -> JsonValue:
    """Return paths below the home directory with ``~``: a card may be published, and a user's name is their own."""
    if isinstance(value, str):
        home = str(Path.home())
        return f"~{value.removeprefix(home)}" if value.startswith(f"{home}/") else value
    if isinstance(value, list):
        return [_without_home(item) for item in value]
    return {name: _without_home(item) for name, item in value.items()} if isinstance(value, dict) else value
