"""``lr_scheduler_kwargs``: transformers' names, and what was not written is left to the schedule."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cohort.tasks.sections.schedule_options_section import (
    ScheduleSection,
    parse_schedule_section,
    plain_schedule_section,
)
from cohort.training.schedules import ScheduleOptions


def test_what_is_written_becomes_the_options_of_a_schedule() -> None:
    section = ScheduleSection.model_validate({"num_cycles": 3.0, "decay_type": "1-sqrt"})
    assert section.options() == ScheduleOptions(num_cycles=3, decay_type="1-sqrt")
    assert plain_schedule_section(section) == {"num_cycles": 3, "decay_type": "1-sqrt"}
    assert parse_schedule_section(None) == {}


def test_the_least_rate_is_written_once() -> None:
    with pytest.raises(ValidationError):
        ScheduleSection.model_validate({"min_lr": 1e-6, "min_lr_rate": 0.1})
