"""Which hyperparameters of a run are multiples of another, by its recorded task."""

from __future__ import annotations

from cohort.runs.facts import RunFacts
from cohort.runs.searched_parameters import task_section
from cohort.tasks.hyperparameters import SEARCHABLE, parse_value
from cohort.tuning.parameters import MultipleOf

__all__ = ["followed_parameters"]


def followed_parameters(facts: RunFacts) -> dict[str, str]:
    """Return the base of each hyperparameter that the task writes as a multiple of another (``lora_alpha: 2r``)."""
    # read from the task and not from the trials: in a few trials, any two hyperparameters that never repeat a value
    # look as if one were a multiple of the other
    space, lora = task_section(facts, "search", "space"), task_section(facts, "lora")
    followed = {}
    for name, kind in SEARCHABLE.items():
        if not kind.is_rank_multiple_allowed:
            continue
        written = space[name] if name in space else lora.get(name)
        # a list of one multiple is that multiple; of several, the factor is searched
        entry = written[0] if isinstance(written, list) and len(written) == 1 else written
        multiple = parse_value(entry, kind, at=())
        if isinstance(multiple, MultipleOf):
            followed[name] = multiple.parameter
    return followed
