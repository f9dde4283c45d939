"""Losses of a preferred answer against another one, which preference objectives share.

Shapes:  G pairs
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["pair_loss", "reward_metrics"]


def pair_loss(margins_G: Tensor, *, kind: str, beta_G: Tensor, smoothing_G: Tensor) -> Tensor:
    """Return the loss of each margin, which is what the preferred answer has more than the other, in nats.

    Args:
        kind: ``sigmoid``, ``hinge``, ``ipo`` or ``robust``.
        beta_G: Temperature; of ``ipo`` the regularization that the margin's goal ``1 / (2 beta)`` follows from.
        smoothing_G: Probability that a label is wrong; ``sigmoid`` and ``robust`` read it.

    Raises:
        ValueError: another ``kind``.
    """
    if kind == "hinge":
        return F.relu(1 - beta_G * margins_G)
    if kind == "ipo":
        return (margins_G - 1 / (2 * beta_G)).square()
    right_G = -F.logsigmoid(beta_G * margins_G) * (1 - smoothing_G)
    wrong_G = -F.logsigmoid(-beta_G * margins_G) * smoothing_G
    if kind == "sigmoid":
        return right_G + wrong_G
    if kind == "robust":
        return (right_G - wrong_G) / (1 - 2 * smoothing_G)
    raise ValueError(f"no loss of pairs is called {kind!r}; there are sigmoid, hinge, ipo and robust")


def reward_metrics(rewards_G2: Tensor) -> dict[str, Tensor]:
    """Return, of each pair, whether the preferred answer has the higher reward, and by how much."""
    chosen_G, rejected_G = rewards_G2[:, 0], rewards_G2[:, 1]
    return {
        "reward_accuracy": (chosen_G > rejected_G).to(rewards_G2.dtype),
        "reward_margin": chosen_G - rejected_G,
    }
