"""The text of a first task file: the keys that users change most, each with what it means and what else it may be."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from cohort.data.settings import RowReading
from cohort.metrics import REWARD_ACCURACY
from cohort.training.objectives.declaration import (
    DEFAULT_OBJECTIVE_NAME,
    OBJECTIVE_DECLARATIONS,
    ObjectiveDeclaration,
)

__all__ = ["FirstTaskFile"]

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_COMMENT_COLUMN = 42
_BETWEEN = "a line break before the answer, which rows lack; or your own words"
_TEMPLATES = "the tokenizer has none; or chatml, llama-3, zephyr, a file"


@dataclass(frozen=True, kw_only=True)
class FirstTaskFile:
    """What a first task file says. Paths are as the file shall name them.

    Attributes:
        name: The file's name, for the commands in its first lines.
        model: ``model_name_or_path``.
        train: ``dataset.train``, one entry or several.
        validation: A file, or a share of the rows.
        columns: Our column names and the file's, where they differ.
        chat_template: The known template for conversations, where the tokenizer has none.
        prompt_template: What puts something between prompt and answer, where the rows have nothing there.
        example: The first training row as the model sees it, with marks around what is trained.
        on_long_rows: What happens to rows above ``max_length``.
        data_note: What was read, for a comment.
        max_length: In tokens.
        length_note: How long the rows are, for a comment.
        num_train_epochs: Passes over the rows.
        learning_rates, ranks, batch_sizes: What is searched.
        can_answer: Whether the rows have prompts to generate answers to.
        objective: What is minimised.
        betas: Searched where the objective compares answers.
    """

    name: str
    model: str
    train: Sequence[str]
    validation: str | float
    columns: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    prompt_template: str | None = None
    example: str = ""
    on_long_rows: str = "drop"
    data_note: str
    max_length: int
    length_note: str
    num_train_epochs: int
    learning_rates: Sequence[str]
    ranks: Sequence[int]
    batch_sizes: Sequence[int]
    can_answer: bool
    objective: ObjectiveDeclaration = OBJECTIVE_DECLARATIONS.built_in()[0]
    betas: Sequence[str] = ()

    @property
    def num_trials(self) -> int:
        """How many configurations the grid has."""
        return math.prod(map(len, self._searched))

    @property
    def _searched(self) -> list[Sequence[object]]:
        values: list[Sequence[object]] = [self.learning_rates, self.ranks, self.batch_sizes, self.betas]
        return [entries for entries in values if entries]

    def text(self) -> str:
        """Return the file's text, which is a valid task."""
        train = _quoted(self.train[0]) if len(self.train) == 1 else f"[{', '.join(map(_quoted, self.train))}]"
        is_share = isinstance(self.validation, float)
        validation = f"{self.validation:g}" if isinstance(self.validation, float) else _quoted(self.validation)
        names = ", ".join(f"{name}: {_quoted(column)}" for name, column in self.columns.items())
        grid = " x ".join(str(len(values)) for values in self._searched)
        # as a shell takes them: a name may have spaces
        own = self.objective
        name, run = quote(self.name), quote(f"runs/{self.name.removesuffix('.yaml').removesuffix('.yml')}")
        lines = [
            "# Written by `cohort init`. Relative paths start at this file.",
            "# What is trained on, and what training would take:",
            f"#   cohort check {name}",
            "# The best adapter:",
            f"#   cohort tune {name} -o {run}",
            f"# Keys that are not here have defaults: cohort check {name} --resolved",
            _line("model_name_or_path", _quoted(self.model), "hub id or local directory"),
            "dataset:",
            _line("  train", train, self.data_note),
            _line(
                "  validation",
                validation,
                "this share of the rows, put aside by seed; or a file" if is_share else "or a share such as 0.1",
            ),
            *([_line("  columns", f"{{{names}}}", "our name: the file's name")] if self.columns else []),
            *([_line("  prompt_template", _quoted(self.prompt_template), _BETWEEN)] if self.prompt_template else []),
            _line("  max_length", str(self.max_length), f"in tokens; {self.length_note}"),
            *([_line("  chat_template", self.chat_template, _TEMPLATES)] if self.chat_template else []),
            _line("  on_long_rows", self.on_long_rows, "rows above max_length: drop | truncate | split | error"),
            *([_line("objective", own.name, own.first_choice)] if own.name != DEFAULT_OBJECTIVE_NAME else []),
            "lora:",
            _line("  target_modules", "all-linear", "or a list such as [q_proj, v_proj]"),
            _line("  lora_dropout", "0.0"),
            "training:",
            _line("  num_train_epochs", str(self.num_train_epochs), "or max_steps: optimizer steps of each trial"),
            _line("  lr_scheduler_type", "constant", "constant | linear | cosine"),
            _line("  seed", "0"),
            "evaluation:",
            self._metric_line(),
            _line("search:", "", f"{grid} = {self.num_trials} configurations"),
            _line("  sampler", "grid", "all; or random, tpe with trials: 40"),
            "  space:",
            _line("    learning_rate", f"[{', '.join(self.learning_rates)}]", "tpe: {min: 1e-5, max: 1e-3, log: true}"),
            _line("    r", f"[{', '.join(map(str, self.ranks))}]", "rank of the adapter"),
            _line("    lora_alpha", "2r", "a number, a list, or a multiple of r"),
            _line(
                "    batch_size",
                f"[{', '.join(map(str, self.batch_sizes))}]",
                f"{'pairs' if own.reads is RowReading.PAIRS else 'rows'} of one optimizer step",
            ),
            *([_line("    beta", f"[{', '.join(self.betas)}]", "how strongly a trial is held")] if self.betas else []),
            "early_exit:",
            _line("  rule", "patterns", "ends weak trials early; none trains all to the end"),
            _line("num_gpus", "auto", "0 trains on the CPU"),
        ]
        return "\n".join(lines) + "\n"

    def _metric_line(self) -> str:
        if REWARD_ACCURACY in self.objective.measures:
            # losses of different betas cannot be compared
            return _line("  metric", REWARD_ACCURACY, "how often the better answer has the higher reward")
        comment = "what the best adapter is best at; exact_match compares answers" if self.can_answer else ""
        return _line("  metric", "loss", comment)


def _line(key: str, value: str, comment: str = "") -> str:
    written = f"{key}: {value}" if value else key
    return f"{written:<{_COMMENT_COLUMN}}  # {comment}" if comment else written


def _quoted(text: str) -> str:
    """Return ``text`` as YAML: plain where that is the same text, else in double quotes, as in JSON."""
    is_word = text.lower() in ("null", "true", "false", "yes", "no", "on", "off")
    return text if _PLAIN.fullmatch(text) and not is_word else json.dumps(text, ensure_ascii=False)
