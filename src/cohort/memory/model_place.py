"""Where the base model of a task will be, before a weight is read: on each GPU, divided by layers, or held together."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.adapters.layout import AdapterLayout
from cohort.memory.demand import Demand
from cohort.memory.group_memory import GroupMemory, group_memory
from cohort.memory.rank_groups import GROUP_STRATEGIES, choose_group
from cohort.memory.strategy_options import SettledStrategy, settle_strategy
from cohort.memory.weight_placement import choose_placement
from cohort.ranks.rank_group import RankGroupPlan
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights

__all__ = ["ModelPlace", "choose_model_place"]


@dataclass(frozen=True, kw_only=True)
class ModelPlace:
    """Where a base model will be.

    Attributes:
        device_bytes: Of the model on the fullest device.
        layout: The adapted linears that a rank's bank holds.
        weights: Which layers are not resident, and where their weights are.
        group: How ranks hold the model together; None where each has a whole one, or parts of layers.
        held: What the fullest rank of the group holds.
        notes: For the user; none where every rank has a whole copy and nothing else was asked for.
    """

    device_bytes: int
    layout: AdapterLayout
    weights: RankWeights = ALL_RESIDENT
    group: RankGroupPlan | None = None
    held: GroupMemory | None = None
    notes: tuple[str, ...] = ()


def choose_model_place(
    demand: Demand, *, host_bytes: int | None = None, num_hosts: int = 1, began_with: str | None = None
) -> ModelPlace:
    """Return where the model of a task will be.

    Args:
        host_bytes, num_hosts: As of :func:`choose_placement`.
        began_with: As of :func:`settle_strategy`.

    Raises:
        InputError: too little memory, or what the strategy does not support.
    """
    task = demand.task
    settled = SettledStrategy(name=task.strategy)
    # what links between hosts carry is not predicted: there a group is for those who ask for one
    if num_hosts == 1 or task.strategy in GROUP_STRATEGIES:
        settled = settle_strategy(demand, host_bytes=host_bytes, began_with=began_with)
    if settled.name in GROUP_STRATEGIES:
        group = choose_group(demand, settled.name)
        held = group_memory(group, demand)
        return ModelPlace(
            device_bytes=held.weight_bytes,
            layout=held.layout,
            group=group,
            held=held,
            notes=_told(settled.note, held.note(group, demand.config)),
        )
    placement = choose_placement(demand, host_bytes=host_bytes, num_hosts=num_hosts)
    return ModelPlace(
        device_bytes=placement.device_bytes,
        layout=demand.layout,
        weights=placement.weights,
        notes=_told(settled.note, placement.note),
    )


def _told(*notes: str | None) -> tuple[str, ...]:
    return tuple(note for note in notes if note is not None)
