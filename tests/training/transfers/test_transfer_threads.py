"""What threads wait for before they copy."""

from __future__ import annotations

import torch

from cohort.training.transfers.transfer_threads import ready_events


def test_nothing_is_waited_for_on_the_host() -> None:
    assert ready_events([torch.zeros(3)]) == {}
