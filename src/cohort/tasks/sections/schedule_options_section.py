"""``training.lr_scheduler_kwargs``: what a schedule needs next to its name, with transformers' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from cohort.core.setting_fields import Refusal
from cohort.tasks.fields import Section, refuse, section_with
from cohort.training.schedules import ScheduleOptions

__all__ = ["ScheduleSection", "parse_schedule_section", "plain_schedule_section"]

if TYPE_CHECKING:
    # a type checker cannot see into classes made at run time
    class _OptionKeys(Section):
        def __getattr__(self, name: str) -> Any: ...

else:
    _OptionKeys = section_with(ScheduleOptions)


class ScheduleSection(_OptionKeys):
    """Keys of ``lr_scheduler_kwargs``; which of them count depends on the schedules that the task's trials have."""

    def options(self) -> ScheduleOptions:
        return ScheduleOptions(**self.model_dump())

    @model_validator(mode="after")
    def _one_least_rate(self) -> ScheduleSection:
        if self.min_lr is not None and self.min_lr_rate is not None:
            refuse(
                Refusal(
                    found="min_lr and min_lr_rate",
                    allowed="one of the two",
                    hint="Remove min_lr: a share of the peak fits every learning rate that is searched.",
                    at=("min_lr",),
                )
            )
        return self


def parse_schedule_section(value: object) -> object:
    """Return the empty section for null, transformers' default; anything else as it is."""
    return {} if value is None else value


def plain_schedule_section(section: ScheduleSection) -> dict[str, Any]:
    """Return the section as a task file has it: the keys that were written."""
    return section.options().written()
