"""Values of a task file's own keys as users write them, and what each is read as."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from cohort.core.setting_fields import Refusal, count_words
from cohort.integrations.trackers import TRACKER_NAMES, installed_trackers
from cohort.models.weight_formats.declaration import FORMAT_DECLARATIONS, PLAIN_NAME
from cohort.tasks.fields import refuse, require_known
from cohort.tasks.other_names import nearest_hint
from cohort.tasks.sections.early_exit_section import EarlyExitSection, early_exit_section
from cohort.tuning.early_exit.lookup import EXIT_RULES

__all__ = [
    "MOST_GPUS",
    "empty_section",
    "read_early_exit",
    "read_num_gpus",
    "read_packing",
    "read_quantization",
    "read_report_to",
]

# of a launch; more processes than any has
MOST_GPUS = 100_000


def empty_section(value: object) -> object:
    # a section whose keys are all commented out
    return {} if value is None else value


def read_early_exit(value: object) -> object:
    # not the defaults, as in other sections: an empty `early_exit:` could as well mean none
    if value != "none" and not isinstance(value, Mapping | EarlyExitSection):
        found = "nothing" if value is None else repr(value)
        allowed = f"none, or a section with the keys {', '.join(EarlyExitSection.model_fields)}"
        # the rule's name where its section is expected
        near = get_close_matches(value.lower(), EXIT_RULES.names(), n=1, cutoff=0.7) if isinstance(value, str) else []
        hint = f"Write early_exit: {{rule: {near[0]}}}." if near else None
        refuse(
            Refusal(
                found=found,
                allowed=allowed,
                hint=hint or "Write early_exit: none, or remove the key for the defaults.",
            )
        )
    return early_exit_section(value if isinstance(value, Mapping | EarlyExitSection) else {"rule": "none"})


def read_quantization(value: object) -> object:
    # `none` as in early_exit and report_to; YAML's null is easily forgotten
    value = PLAIN_NAME if value is None else value
    if value in ("4bit", "4-bit", "int4", "fp4"):
        hint = "Write quantization: nf4, which has 4 bits."
        refuse(Refusal(found=repr(value), allowed=" | ".join(FORMAT_DECLARATIONS.names()), hint=hint))
    require_known(value, FORMAT_DECLARATIONS.names(), key="quantization")
    if isinstance(value, str):
        # a package's format that cannot be used is refused here, and not where the model is loaded
        FORMAT_DECLARATIONS.find(value)
    return value


def read_num_gpus(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_GPUS):
        return value
    allowed = f"auto, or {count_words(minimum=0, most=MOST_GPUS)} (0: CPU)"
    refuse(Refusal(found=repr(value), allowed=allowed, hint="Write num_gpus: auto."))


def read_packing(value: object) -> object:
    # TRL's key of this name is true or false, and about rows
    if isinstance(value, bool):
        refuse(
            Refusal(
                found=repr(value),
                allowed="auto | planned | refill: how several GPUs divide trials",
                hint="Remove the key: rows are always packed, and never see each other.",
            )
        )
    return value


def read_report_to(value: object) -> object:
    # `all` is resolved now: a resumed run must report to the trackers it began with, whatever is installed then
    names = [] if value in (None, "none") else list(installed_trackers()) if value == "all" else value
    names = [names] if isinstance(names, str) else names
    allowed = f"none, all (those installed), or one or several of {', '.join(TRACKER_NAMES)}"
    if not isinstance(names, list | tuple):
        refuse(Refusal(found=repr(value), allowed=allowed, hint="Write report_to: none."))
    bad = [
        Refusal(
            found=repr(name),
            allowed=allowed,
            hint=nearest_hint(str(name), TRACKER_NAMES),
            at=(index,) if isinstance(value, list) else (),
        )
        for index, name in enumerate(names)
        if name not in TRACKER_NAMES
    ]
    if bad:
        refuse(*bad)
    return tuple(names)
