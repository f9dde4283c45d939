"""Reinforcement learning with group-relative advantages: answers are drawn, rewarded, and compared with each other.

Source: Shao et al. 2024, DeepSeekMath, section 4.1; the losses and their sources are in ``client_losses``. Keys,
defaults and meanings are those of TRL's GRPOConfig.

Shapes:  G prompts · N answers to each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cohort.core.setting_fields import choice, flag, number, share, whole
from cohort.data.settings import RowReading
from cohort.training.client_losses.group_relative import GROUP_LOSSES
from cohort.training.client_losses.group_relative.group_loss import GroupLoss, answer_shares
from cohort.training.client_training.datum import TokenLoss
from cohort.training.objectives.declaration import ObjectiveDeclaration, Searched
from cohort.training.objectives.objective import Objective

__all__ = ["DECLARATION", "OBJECTIVE", "GroupRelativePolicyOptimization"]

DECLARATION = ObjectiveDeclaration(
    name="grpo",
    summary="reinforcement learning: answers to a prompt are drawn, rewarded, and compared with each other",
    reads=RowReading.PROMPTS,
    values={
        "loss_type": Searched(
            made=choice(
                "dapo",
                "form of the loss",
                options=("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus"),
            ),
            example="[dapo, dr_grpo]",
        ),
        "num_generations": Searched(
            made=whole(8, "answers that are drawn to each prompt", minimum=2, most=4096), example="[4, 8, 16]"
        ),
        "epsilon": Searched(
            made=number(
                0.2, "how far an importance ratio may fall below 1 before it is clipped", minimum=None, below=1
            ),
            example="[0.1, 0.2]",
        ),
        "epsilon_high": Searched(
            made=number(0.0, "how far it may rise above 1, of cispo the largest ratio itself; 0: as epsilon"),
            example="[0.2, 0.28]",
        ),
        "delta": Searched(
            made=number(0.0, "the largest ratio where an advantage is negative; 0: none"),
            example="[2.0, 4.0]",
            only_with={"loss_type": ("grpo", "dr_grpo", "dapo", "gspo")},
        ),
        "beta": Searched(
            made=number(0.0, "weight of the KL divergence from the base model"),
            example="[0.0, 0.001, 0.04]",
        ),
        "use_bias_correction_kl": Searched(
            made=flag(True, "multiply the KL of each token by its importance ratio"), example="[true, false]"
        ),
        "scale_rewards": Searched(
            made=choice(
                "group",
                "whose deviation an advantage is divided by: of the answers to the prompt, of the whole step, or none",
                options=("group", "batch", "none"),
            ),
            example="[group, none]",
            only_with={"loss_type": ("grpo", "dr_grpo", "dapo", "gspo", "cispo")},
        ),
        "num_iterations": Searched(
            made=whole(1, "optimizer steps on the answers of one draw", most=1000), example="[1, 2]"
        ),
        "temperature": Searched(
            made=number(1.0, "temperature that answers are drawn with", minimum=None, most=100), example="[0.8, 1.0]"
        ),
        "top_p": Searched(
            made=share(1.0, "share of the probability that answers are drawn from"), example="[0.95, 1.0]"
        ),
        "max_completion_length": Searched(
            made=whole(256, "most tokens of an answer", most=1_000_000), example="[128, 256]"
        ),
        "mask_truncated_completions": Searched(
            made=flag(False, "leave answers out of the loss that did not end by themselves"), example="[true, false]"
        ),
    },
    measures=("reward",),
    first_choice="answers that functions reward, see rewards",
)


@dataclass(frozen=True, kw_only=True)
class GroupRelativePolicyOptimization(Objective):
    """What a trial draws, and how its answers become a loss.

    Attributes:
        loss_type: A name of ``GROUP_LOSSES``.
        num_generations: Answers to each prompt; ``batch_size`` counts prompts.
        epsilon_high: 0 is ``epsilon``.
        delta: 0 is no bound.
        beta: Weight of the KL to the base model.
        scale_rewards: ``group``, ``batch`` or ``none``.
        num_iterations: Optimizer steps on the same answers.
        max_completion_length: Most tokens of an answer.
    """

    samples_answers: ClassVar[bool] = DECLARATION.samples_answers
    loss_type: str = DECLARATION.default("loss_type")
    num_generations: int = DECLARATION.default("num_generations")
    epsilon: float = DECLARATION.default("epsilon")
    epsilon_high: float = DECLARATION.default("epsilon_high")
    delta: float = DECLARATION.default("delta")
    beta: float = DECLARATION.default("beta")
    use_bias_correction_kl: bool = DECLARATION.default("use_bias_correction_kl")
    scale_rewards: str = DECLARATION.default("scale_rewards")
    num_iterations: int = DECLARATION.default("num_iterations")
    temperature: float = DECLARATION.default("temperature")
    top_p: float = DECLARATION.default("top_p")
    max_completion_length: int = DECLARATION.default("max_completion_length")
    mask_truncated_completions: bool = DECLARATION.default("mask_truncated_completions")

    @property
    def group_loss(self) -> GroupLoss:
        return GROUP_LOSSES[self.loss_type]

    def token_loss(self, *, on_policy: bool) -> TokenLoss:
        """Return the loss of each token; ``on_policy`` takes the pass's own log-probabilities as the old ones."""
        names = ("epsilon", "epsilon_high", "delta", "beta", "use_bias_correction_kl")
        numbers = {name: self.numbers[name] for name in names} | {"on_policy": float(on_policy)}
        return TokenLoss(objective=self.group_loss.objective, numbers=numbers)

    def shares(self, lengths: Sequence[int], *, truncated: Sequence[bool]) -> list[float]:
        """Return what each token of each answer counts in the loss of the whole optimizer step.

        Args:
            lengths: Tokens of each answer.
            truncated: Whether it was cut off at ``max_completion_length``.
        """
        left_out = [self.mask_truncated_completions and cut for cut in truncated]
        return answer_shares(
            self.group_loss, lengths, left_out=left_out, max_completion_length=self.max_completion_length
        )

    def clipped(self, log_ratios: Sequence[NDArray[np.float64]], advantages: Sequence[float]) -> NDArray[np.bool_]:
        """Return which tokens of some answers, one answer after the other, have a ratio that is clipped."""
        return self.group_loss.clipped(log_ratios, advantages, numbers=self.numbers)

    def advantages(self, rewards_GN: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the advantages [G, N] of a whole step; a reward that is NaN takes no part, and its advantage is 0."""
        return self.group_loss.advantages(rewards_GN, scale=self.scale_rewards)


OBJECTIVE = GroupRelativePolicyOptimization()
