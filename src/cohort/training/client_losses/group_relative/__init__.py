"""Policy losses over groups of answers by ``loss_type``, which is their file's name: a file with a ``GROUP_LOSS``."""

from __future__ import annotations

from cohort.core.discovery import offered_in
from cohort.training.client_losses.group_relative.group_loss import GroupLoss

__all__ = ["GROUP_LOSSES"]

GROUP_LOSSES: dict[str, GroupLoss] = offered_in(__name__, "GROUP_LOSS")
