"""The ring hears when the stream enters and leaves a layer, in both directions."""

from __future__ import annotations

from typing import Any

import torch

from cohort.models.streaming.layer_passage import enter_layer, leave_layer


class Heard:
    """A ring that notes what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def need(self, layer: int) -> None:
        self.words.append(f"need {layer}")

    def done(self, layer: int, *, backward: bool, returns: bool = False) -> None:
        self.words.append(f"done {layer}{' backward' * backward}{' returns' * returns}")


def through(ring: Any, x_TD: torch.Tensor) -> torch.Tensor:
    residual_TD, delta_TD = x_TD, None
    for layer in range(2):
        residual_TD, delta_TD = enter_layer(ring, layer, residual_TD, delta_TD)
        ring.words.append(f"compute {layer}")
        residual_TD, delta_TD = leave_layer(ring, layer, residual_TD, 2.0 * residual_TD)
    assert delta_TD is not None
    return residual_TD + delta_TD


def test_a_backward_pass_needs_a_layer_before_its_products_and_gives_it_free_after_them() -> None:
    ring, x_TD = Heard(), torch.ones(3, 2, requires_grad=True)
    through(ring, x_TD).sum().backward()
    forward, backward = ring.words[:6], ring.words[6:]
    assert forward == ["need 0", "compute 0", "done 0 returns", "need 1", "compute 1", "done 1 returns"]
    assert backward == ["need 1", "done 1 backward", "need 0", "done 0 backward"]
    assert x_TD.grad is not None
    assert torch.equal(x_TD.grad, torch.full((3, 2), 3.0))


def test_a_pass_that_keeps_nothing_has_no_way_back() -> None:
    ring, x_TD = Heard(), torch.ones(3, 2, requires_grad=True)
    with torch.no_grad():
        through(ring, x_TD)
    assert "done 1" in ring.words
    assert not any("returns" in word for word in ring.words)
