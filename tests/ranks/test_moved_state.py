"""A state moves with its moments; what is on the host stays."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.ranks.moved_state import state_on
from cohort.training.trial import TrialState


def state_of(device: str) -> TrialState:
    weights, moment = torch.ones(2, 3, device=device), torch.full((2, 3), 2.0, device=device)
    return TrialState(adapter=AdapterState(weights=weights, moments={"exp_avg": moment}), step=4)


def test_a_state_of_the_host_stays() -> None:
    state = state_of("cpu")
    found = state_on(state, torch.device("meta"))
    assert found.adapter.weights is state.adapter.weights
    assert found.step == 4


@pytest.mark.gpu
def test_a_state_of_a_gpu_moves_or_is_copied() -> None:
    state = state_of("cuda")
    found = state_on(state, torch.device("cpu"))
    assert found.adapter.moments["exp_avg"].tolist() == [[2.0] * 3] * 2
    assert state_on(state, torch.device("cuda", 0)).adapter.weights is state.adapter.weights
    copied = state_on(state, torch.device("cuda", 0), copies=True)
    assert copied.adapter.weights.data_ptr() != state.adapter.weights.data_ptr()
