"""The model whose passes launch the kernels of a rank: what is compiled before ranks that hold it together start."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.adapters.layout import AdapterLayout
from cohort.models.config import DecoderConfig
from cohort.models.decoder_layer import TensorRegion
from cohort.ranks.rank_group import RankGroupPlan, TensorGroup
from cohort.ranks.tensor.base_shards import shard_config
from cohort.ranks.tensor.groups import OneRank
from cohort.ranks.tensor.regions import Region

__all__ = ["LaunchedModel", "launched_model"]


@dataclass(frozen=True, kw_only=True)
class LaunchedModel:
    """Sizes that decide which kernels are launched.

    Attributes:
        config: Of the model.
        layout: Its adapted linears.
        region: Stands around attention and MLP where ranks sum there, and sums nothing.
    """

    config: DecoderConfig
    layout: AdapterLayout
    region: TensorRegion | None = None


def launched_model(group: RankGroupPlan | None, *, config: DecoderConfig, layout: AdapterLayout) -> LaunchedModel:
    """Return what one rank launches for a model.

    A stage of a pipeline launches the whole model's kernels, fewer times. The loss of shards has no kernels of its own.

    Args:
        group: Of the rank; None where it has the whole model.
        config: Of the model.
        layout: Its adapted linears.
    """
    if isinstance(group, TensorGroup):
        return LaunchedModel(
            config=shard_config(config, size=group.size),
            layout=group.local_layout(layout, 0),
            region=Region(OneRank()),
        )
    return LaunchedModel(config=config, layout=layout)
