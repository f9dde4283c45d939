"""The model whose passes launch the kernels of a rank, known without its weights: its sizes, and a decoder of zeros."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.pass_inputs.shared_by_layers import TensorRegion
from cohort.models.weights import freeze_weights
from cohort.ranks.rank_group import RankGroupPlan, TensorGroup
from cohort.ranks.tensor.base_shards import shard_config
from cohort.ranks.tensor.groups import OneRank
from cohort.ranks.tensor.regions import Region

__all__ = ["LaunchedModel", "launched_model", "stand_in_decoder"]


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


def stand_in_decoder(
    config: DecoderConfig, *, dtype: torch.dtype, device: torch.device | str, region: TensorRegion | None = None
) -> Decoder:
    """Return a decoder of zeros, in which weights of one shape share their memory: one layer and the token tables.

    Args:
        region: Of a rank's shard, as the decoder's.
    """
    of_shape: dict[tuple[int, ...], Tensor] = {}

    def zeros(shape: tuple[int, ...]) -> Tensor:
        if shape not in of_shape:
            of_shape[shape] = torch.zeros(shape, dtype=dtype, device=device)
        return of_shape[shape]

    tensors, products = freeze_weights((fused, zeros(fused.shape)) for fused in checkpoint_layout(config))
    return Decoder(config, tensors=tensors, products=products, region=region)
