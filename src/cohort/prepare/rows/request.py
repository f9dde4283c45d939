"""What the rows of a task follow from: what a process needs to read and tokenise them, be it the run's or another one.

Nothing here imports torch or the task file's layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.core.setting_fields import setting_fields
from cohort.data.chat import unknown_end_of_answers, use_chat_template
from cohort.data.chat_templates import template_text
from cohort.data.files.reading import are_sources_local
from cohort.data.loading import LoadedDataset, load_dataset
from cohort.data.problems import LISTED_PROBLEMS
from cohort.data.settings import DatasetSettings
from cohort.models.known_tokenizer import KnownTokenizer, can_become_known, known_tokenizer, tokenizer_files

if TYPE_CHECKING:
    from cohort.tasks.task_file import TaskFile

__all__ = ["RowsRequest"]

_DEFAULT_LENGTH = setting_fields(DatasetSettings)["max_length"].default


@dataclass(frozen=True, kw_only=True)
class RowsRequest:
    """The rows of one task.

    Attributes:
        model: Whose tokenizer it is: a directory or a hub id.
        settings: The dataset section.
        evaluation_max_examples: As for :func:`cohort.data.loading.load_dataset`.
        is_tokenizer_needed: Whether the run loads the tokenizer anyhow: answers are asked for and read in words.
    """

    model: str
    settings: DatasetSettings
    evaluation_max_examples: int | None
    is_tokenizer_needed: bool

    @classmethod
    def of(cls, task: TaskFile) -> RowsRequest:
        return cls(
            model=task.model_name_or_path,
            settings=task.dataset_settings(),
            evaluation_max_examples=task.evaluation.max_examples,
            is_tokenizer_needed=bool(task.evaluation.measured),
        )

    def tokenizer(self) -> KnownTokenizer:
        """Return the model's tokenizer.

        Raises:
            InputError: there is none, or it does not load.
        """
        template, variables = self.settings.chat_template, self.settings.chat_template_kwargs
        return known_tokenizer(
            self.model,
            prepare=lambda loaded: use_chat_template(loaded, template, variables),
            how=self._how(),
            is_needed=self.is_tokenizer_needed,
        )

    def load(
        self,
        tokenizer: KnownTokenizer,
        *,
        context: int | None = None,
        max_problems: int | None = LISTED_PROBLEMS,
        can_skip: bool = True,
    ) -> LoadedDataset:
        """Return the rows.

        Args:
            context: Most tokens that the base model was trained on, where that is known.
            max_problems, can_skip: As for :func:`cohort.data.loading.load_dataset`.

        Raises:
            InputError: the data cannot be used.
        """
        load = partial(
            load_dataset,
            tokenizer=tokenizer,
            evaluation_max_examples=self.evaluation_max_examples,
            max_problems=max_problems,
            can_skip=can_skip,
        )
        loaded = load(self.settings)
        # The default was not chosen for this model. Rows are read again only where some are longer than its context, so
        # that runs that have begun keep theirs.
        if context is not None and self.settings.max_length == _DEFAULT_LENGTH and loaded.longest > context:
            loaded = load(replace(self.settings, max_length=context))
        return loaded

    def is_worth_keeping(self, folder: Path) -> bool:
        """Return whether :meth:`keep` would spare a run that begins now the load of the tokenizer.

        Args:
            folder: The files of the model.
        """
        can_be_kept = not self.is_tokenizer_needed and not self.settings.given and are_sources_local(self.settings)
        return can_be_kept and can_become_known(folder, how=self._how())

    def keep(self) -> None:
        """Leave in the caches what a run takes from them: the rows, and all that it asks the tokenizer.

        Raises:
            InputError: there is no tokenizer, or the data cannot be used.
        """
        tokenizer = self.tokenizer()
        # by this process the model's context is not known: a run whose rows are longer reads them once more
        loaded = self.load(tokenizer)
        if loaded.report.is_chat:
            unknown_end_of_answers(tokenizer)
        # last: it keeps the answers
        tokenizer_files(tokenizer)

    def _how(self) -> object:
        template, variables = self.settings.chat_template, self.settings.chat_template_kwargs
        return [template, None if template is None else template_text(template), variables]
