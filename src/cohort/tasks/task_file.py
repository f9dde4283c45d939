"""The whole task as one pydantic model, and what the layers below read of it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, PrivateAttr, SerializeAsAny, WithJsonSchema, model_validator
from ruamel.yaml import YAML

from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.core.errors import Problem
from cohort.core.setting_fields import MOST_COUNT, count_words, setting_fields
from cohort.core.source_location import Place
from cohort.data.files.given_rows import GivenRows
from cohort.data.settings import DatasetSettings
from cohort.integrations.trackers import TRACKER_NAMES
from cohort.models.weight_formats.declaration import FORMAT_DECLARATIONS, PLAIN_NAME
from cohort.tasks.fields import SchemaOnDemand, Section, Whole, setting
from cohort.tasks.hyperparameters import SEARCHABLE, SECTION_OF, key_of
from cohort.tasks.other_names import use_own_names
from cohort.tasks.sections.block_section import BdLoraSection
from cohort.tasks.sections.dataset_section import DatasetSection
from cohort.tasks.sections.early_exit_section import EarlyExitSection
from cohort.tasks.sections.evaluation_section import EvaluationSection
from cohort.tasks.sections.memory_section import MemorySection
from cohort.tasks.sections.objective_section import (
    ObjectiveSection,
    is_objective_value,
    objective_schema,
    parse_objective,
    plain_objective,
)
from cohort.tasks.sections.reward_checks import choose_by_reward
from cohort.tasks.sections.rewards_section import RewardsSection, parse_rewards, plain_rewards, rewards_schema
from cohort.tasks.sections.sections import LoraSection, SearchSection, TrainingSection
from cohort.tasks.top_values import (
    MOST_GPUS,
    empty_section,
    read_early_exit,
    read_num_gpus,
    read_packing,
    read_quantization,
    read_report_to,
)
from cohort.tasks.yaml_lines import TaskOrigin
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS
from cohort.tuning.constraints import parse_constraint
from cohort.tuning.early_exit.settings import EarlyExitSettings
from cohort.tuning.evaluation_times import EvaluationSettings
from cohort.tuning.parameters import Conditional, Constant, MultipleOf, Parameter
from cohort.tuning.space import SearchSpace

__all__ = ["TaskFile"]


def _write_null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


class TaskFile(Section):
    """One task with every default filled in. Local paths are absolute; what is not local is a hub id."""

    model_name_or_path: str = setting(
        min_length=1, allowed="a hub id or a local directory", description="the base model, a hub id or a directory"
    )
    quantization: Annotated[
        str,
        BeforeValidator(read_quantization),
        SchemaOnDemand(lambda: {"type": "string", "enum": list(FORMAT_DECLARATIONS.names())}),
    ] = setting(
        PLAIN_NAME,
        allowed=" | ".join(entry.name for entry in FORMAT_DECLARATIONS.built_in()),
        description="how the frozen linears of the base model are kept; none: as the model computes",
    )
    dataset: DatasetSection = setting(allowed="a section", description="a section with at least train")
    objective: Annotated[
        ObjectiveSection,
        BeforeValidator(parse_objective),
        PlainSerializer(plain_objective),
        SchemaOnDemand(objective_schema),
    ] = setting(
        # as it is without a word of the task; a validator would look for other packages while this is imported
        ObjectiveSection.model_construct(),
        allowed=f"{' | '.join(entry.name for entry in OBJECTIVE_DECLARATIONS.built_in())}, or a section",
        description="what is minimised",
    )
    rewards: Annotated[
        RewardsSection | None,
        BeforeValidator(parse_rewards),
        PlainSerializer(plain_rewards),
        SchemaOnDemand(rewards_schema),
    ] = setting(
        None,
        allowed="a reward, a list of rewards, or a section with functions",
        description="what rewards answers, with an objective that draws them",
    )
    lora: Annotated[LoraSection, BeforeValidator(empty_section)] = setting(
        LoraSection(), allowed="a section", description="the adapters"
    )
    training: Annotated[TrainingSection, BeforeValidator(empty_section)] = setting(
        TrainingSection(), allowed="a section", description="how a trial is trained"
    )
    evaluation: Annotated[EvaluationSection, BeforeValidator(empty_section)] = setting(
        EvaluationSection(), allowed="a section", description="when and on what trials are compared"
    )
    search: Annotated[SearchSection, BeforeValidator(empty_section)] = setting(
        SearchSection(), allowed="a section", description="which configurations are tried"
    )
    early_exit: Annotated[SerializeAsAny[EarlyExitSection], BeforeValidator(read_early_exit)] = setting(
        EarlyExitSection(), allowed="none, or a section", description="when trials end early"
    )
    memory: Annotated[MemorySection, BeforeValidator(empty_section)] = setting(
        MemorySection(), allowed="a section", description="what a run may take of its device's memory"
    )
    priority: Whole = setting(
        0,
        ge=-MOST_COUNT,
        le=MOST_COUNT,
        allowed=count_words(minimum=-MOST_COUNT),
        description="higher goes first among several tasks",
    )
    num_gpus: Annotated[
        Literal["auto"] | int,
        BeforeValidator(read_num_gpus),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": MOST_GPUS}]}),
    ] = setting(
        "auto",
        allowed=f"auto, or {count_words(minimum=0, most=MOST_GPUS)}",
        description="GPUs to divide the trials over; auto is one, 0 the CPU",
    )
    strategy: Literal["auto", "replicas", "adapter_parallel", "tensor", "pipeline"] = setting(
        "auto",
        allowed="auto | replicas | adapter_parallel | tensor | pipeline",
        description="on several GPUs: each holds the whole base model, or all hold parts of it; auto chooses",
    )
    microbatches: Literal["auto", "greedy", "solver"] = setting(
        "auto",
        allowed="auto | greedy | solver",
        description="how the windows of a pipeline are packed: solver by integer programs, one window ahead in a "
        "process of its own; auto where a CPU core is free for it, the window is solved in time and gains 1 %",
    )
    packing: Annotated[Literal["auto", "planned", "refill"], BeforeValidator(read_packing)] = setting(
        "auto",
        allowed="auto | planned | refill",
        description="on several GPUs, once no comparison lies ahead: planned divides the trials that are left into "
        "packs, refill gives each slot that comes free to the next trial; auto takes what is predicted to end first",
    )
    numerics: Literal["auto", "fast", "exact"] = setting(
        "auto",
        allowed="auto | fast | exact",
        description="on a GPU: exact gives a packed trial the very bits it has alone, as a CPU always does; auto is "
        "exact where a step was measured to take at most 5 % longer, else fast",
    )
    save_total_limit: Annotated[
        Whole | None,
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "maximum": MOST_COUNT}, {"type": "null"}]}),
    ] = setting(
        None,
        ge=0,
        le=MOST_COUNT,
        allowed=f"null, or {count_words(minimum=0)}",
        description="most best checkpoints that are kept of trials that lost, the best of them; null: all",
    )
    report_to: Annotated[
        tuple[str, ...],
        BeforeValidator(read_report_to),
        PlainSerializer(lambda names: list(names) if names else "none"),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": list(TRACKER_NAMES)}}]}),
    ] = setting(
        (), allowed="none, all, or a list of trackers", description="where metrics are sent besides the run directory"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_own_names(cls, data: Any) -> Any:
        """Accept former names here too: an old run's task does not go through :func:`task_from_mapping`."""
        if isinstance(data, Mapping):
            use_own_names(data := dict(data), {})
            choose_by_reward(data)
        return data

    _origin: TaskOrigin = PrivateAttr(default_factory=lambda: TaskOrigin(name="task"))
    _given: dict[str, GivenRows] = PrivateAttr(default_factory=dict)

    def where(self, key: str) -> Place:
        """Return the place of a dotted key: ``task.yaml:12: search.space.r``."""
        return self._origin.where(key)

    def located(self, problem: Problem) -> Problem:
        """Return a problem of a layer that knows keys but not their lines, with the line in the task file."""
        place = problem.where
        # a place that has a line or an option, or lies in another file, is more precise than what is known here
        if not place.key or place.option or place.line is not None or place.file not in ("", self._origin.name):
            return problem
        key = place.key
        name = str(key[2]) if key[:2] == ("search", "space") and len(key) > 2 else ""
        if name in SECTION_OF and name not in self.search.space:
            # a hyperparameter that is not searched has its value, and so its line, in a section
            key = (*key_of(name), *key[3:])
        return replace(problem, where=replace(self._origin.where(key), text=place.text))

    def dataset_settings(self) -> DatasetSettings:
        where = Place(file=self._origin.name, key=("dataset",))
        reads = self.objective.reads
        return self.dataset.settings(seed=self.training.seed, where=where, given=self._given, reads=reads)

    @property
    def given(self) -> Mapping[str, GivenRows]:
        """Rows given from Python, by split; a run writes them to the files that the task names."""
        return self._given

    def with_rows_in(self, directory: Path) -> TaskFile:
        """Return the task with the rows that were given from Python as files of ``directory``, one for each split."""
        if not self._given:
            return self
        files = {split: (str(directory.resolve() / f"{split}.jsonl"),) for split in self._given}
        # a section is a pydantic model, which a type checker does not see
        section: Any = self.dataset
        return self.model_copy(update={"dataset": section.model_copy(update=files)})

    def evaluation_settings(self) -> EvaluationSettings:
        """Return when and on how many rows trials are evaluated."""
        names = setting_fields(EvaluationSettings)
        return EvaluationSettings(**{name: getattr(self.evaluation, name) for name in names})

    def early_exit_settings(self) -> EarlyExitSettings:
        return self.early_exit.settings()

    def searchable_defaults(self) -> dict[str, Any]:
        """Return the value of every searchable key where ``search.space`` does not set it, by name."""
        # an objective's own values where it reads them: others are part of no configuration
        own = self.objective.values
        return {
            name: own[name] if name in own else self._value_in_section(name)
            for name in SEARCHABLE
            if name in own or not is_objective_value(name)
        }

    def _value_in_section(self, name: str) -> Any:
        value: Any = self
        for part in key_of(name):
            # a section that is null is not used: its keys have the values that change nothing
            value = SEARCHABLE[name].field.default if value is None else getattr(value, str(part))
        return value

    def block_diagonal(self, nblocks: int) -> BlockDiagonal | None:
        """Return the block structure of a trial with ``nblocks`` blocks; None for plain LoRA."""
        if nblocks == 1:
            return None
        section = self.lora.use_bdlora or BdLoraSection()
        return BlockDiagonal(
            nblocks=nblocks,
            target_modules_bd_a=section.target_modules_bd_a,
            target_modules_bd_b=section.target_modules_bd_b,
            match_strict=section.match_strict,
        )

    def search_space(self) -> SearchSpace:
        """Return the space of whole configurations: every searchable key, the ones not searched as constants.

        Raises:
            InputError: a parameter cannot be what it is together with the others.
        """
        parameters: dict[str, Parameter] = dict(self.search.space)
        for name, value in self.searchable_defaults().items():
            searched = parameters.get(name)
            if searched is None:
                parameters[name] = value if isinstance(value, MultipleOf) else Constant(value=value)
            # where its condition does not hold, a parameter has the value of its section
            elif isinstance(searched, Conditional):
                parameters[name] = replace(searched, otherwise=value)
        return SearchSpace(
            parameters=parameters,
            where=Place(file=self._origin.name, key=("search", "space")),
            constraints=tuple(parse_constraint(text, names=tuple(parameters)) for text in self.search.constraints),
        )

    def notes(self) -> list[str]:
        """Return notes for the user: keys that have no effect because another key overrides them."""
        # a note and no error, because the space is documented to win over a section
        notes = [
            f"search.space.{name} overrides {SECTION_OF[name]}.{name}"
            for name in self.search.space
            if self._is_in_section(name)
        ]
        if self.training.max_steps is not None and "num_train_epochs" in self.training.model_fields_set:
            notes.append("training.max_steps overrides training.num_train_epochs")
        return notes

    def _is_in_section(self, name: str) -> bool:
        """Return whether a searchable key was written in its section."""
        section: Any = self
        for part in key_of(name)[:-1]:
            section = getattr(section, str(part))
        return section is not None and name in section.model_fields_set

    def resolved_yaml(self) -> str:
        """Return the task as YAML with every default written out; :func:`load_task` reads it back as the same task."""
        yaml = YAML()
        yaml.default_flow_style = False
        # a bare `key:` looks unfinished
        yaml.representer.add_representer(type(None), _write_null)
        stream = io.StringIO()
        yaml.dump(self.model_dump(mode="json"), stream)
        return "# The task with every default written out.\n" + stream.getvalue()
