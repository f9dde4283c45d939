"""Reference log-probabilities of a task whose model is held by ranks together: they measure them before training."""

from __future__ import annotations

from dataclasses import replace

from cohort.prepare.preparation import Preparation
from cohort.prepare.reference import Reference
from cohort.ranks.rank_group import TensorGroup
from cohort.ranks.training_executor import TrainingExecutor

__all__ = ["with_group_reference"]


def with_group_reference(preparation: Preparation, executor: TrainingExecutor) -> tuple[Preparation, str | None]:
    """Return a task with what the reference model gives the answers of its rows, and a note; as it is without need.

    Args:
        executor: That of the task; it holds the model that :func:`~cohort.prepare.preparation.prepare` did not load.

    Raises:
        InputError: a row does not fit into memory.
        RankLostError: a rank ended.
    """
    group = preparation.group
    if group is None:
        # measured when the model was loaded
        return preparation, None
    reference = Reference(
        task=preparation.task,
        measured_by=executor,
        machine=preparation.machine,
        model_hash=preparation.facts.inputs.model_hash or "",
        token_budget=preparation.sizes.executor.evaluation_token_budget,
        num_shards=group.size if isinstance(group, TensorGroup) else 1,
    )
    data, note = reference.of_data(preparation.inputs.data, say=lambda _: None)
    return replace(preparation, inputs=replace(preparation.inputs, data=data)), note
