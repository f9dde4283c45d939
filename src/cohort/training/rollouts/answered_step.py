"""The answers that one trial trains on in one optimizer step, and what the step is reported as.

Shapes:  G prompts of a step · S answers to each · P tokens of an answer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cohort.training.rollouts.group_objective import GroupObjective
from cohort.training.step_samples import Resident

__all__ = ["AnsweredStep", "GivenAnswer", "objective_of", "step_metrics"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenAnswer:
    """One answer.

    Attributes:
        tokens: int32 [P], the token that ends it included.
        logps: What the sampler gave each token in nats, at the sampling temperature, float64 [P].
        is_cut: Whether it reached its most tokens, or the end of the model's context.
        is_finite: Whether it ended otherwise than by logits that are no numbers.
        given: bool [P], which tokens the trial did not draw: what was replied to it. None where it drew all of them.
        turns: How often it answered.
    """

    tokens: NDArray[np.int32]
    logps: NDArray[np.float64]
    is_cut: bool
    is_finite: bool = True
    given: NDArray[np.bool_] | None = None
    turns: int = 1

    @property
    def own(self) -> NDArray[np.bool_]:
        """Which tokens [P] the trial drew, and is trained on."""
        return np.ones(len(self.tokens), dtype=np.bool_) if self.given is None else ~self.given


@dataclass(frozen=True, kw_only=True, eq=False)
class AnsweredStep:
    """A step whose answers and rewards are all there.

    Attributes:
        resident: The trial, at the step that drew the answers.
        row_ids: The rows of its prompts [G].
        prompts: Tokens of each prompt.
        answers: By prompt and place in its group [G][S].
        rewards: float64 [G, S]; NaN where no reward function scored the answer.
        num_failed: How often a reward function failed.
    """

    resident: Resident
    row_ids: tuple[int, ...]
    prompts: tuple[NDArray[np.int32], ...]
    answers: tuple[tuple[GivenAnswer, ...], ...]
    rewards: NDArray[np.float64]
    num_failed: int = 0

    @property
    def objective(self) -> GroupObjective:
        return objective_of(self.resident)

    @property
    def is_finite(self) -> bool:
        """Whether the adapter gave numbers."""
        return all(answer.is_finite for _, answer in self.pairs())

    @property
    def num_tokens(self) -> int:
        """Tokens of all prompts and answers, as a pass reads them."""
        return sum(len(prompt) + len(answer.tokens) for prompt, answer in self.pairs())

    def pairs(self) -> Iterator[tuple[NDArray[np.int32], GivenAnswer]]:
        """Return each answer with its prompt, group by group."""
        for prompt, group in zip(self.prompts, self.answers, strict=True):
            for answer in group:
                yield prompt, answer


def objective_of(resident: Resident) -> GroupObjective:
    objective = resident.spec.objective
    assert isinstance(objective, GroupObjective), "only such objectives sample answers"
    return objective


def step_metrics(
    step: AnsweredStep, *, advantages: NDArray[np.float64], trained_logps: Sequence[NDArray[np.float64]]
) -> dict[str, float]:
    """Return what the step is reported as besides its loss.

    ``entropy`` is the mean of ``-log p`` over drawn tokens, at the sampling temperature: an unbiased estimate where
    ``top_p`` is 1. ``sampler_difference`` is the largest distance of a token's log-probability in the sampler from that
    in the training pass, on the same weights. ``reward_errors`` is the share of answers that were left out because a
    function failed.

    Args:
        advantages: [G, S].
        trained_logps: Of each answer's tokens in the first training pass, group by group.
    """
    answers = [answer for _, answer in step.pairs()]
    rewards = step.rewards[np.isfinite(step.rewards)]
    spreads = [float(np.ptp(own[np.isfinite(own)])) if np.isfinite(own).any() else 0.0 for own in step.rewards]
    owned = [answer.own for answer in answers]
    drawn = np.concatenate([answer.logps[own] for answer, own in zip(answers, owned, strict=True)])
    trained = np.concatenate([logps[own] for logps, own in zip(trained_logps, owned, strict=True)])
    differences = np.abs(drawn - trained)
    turns = {"turns": sum(answer.turns for answer in answers) / len(answers)}
    return {
        "reward": float(rewards.mean()) if len(rewards) else float("nan"),
        "reward_std": float(rewards.std()) if len(rewards) else 0.0,
        "groups_alike": sum(spread == 0.0 for spread in spreads) / len(spreads),
        "answer_length": len(drawn) / len(answers),
        "cut_share": sum(answer.is_cut for answer in answers) / len(answers),
        "entropy": float(-drawn.mean()),
        "advantage": float(np.abs(advantages).mean()),
        "reward_failures": float(step.num_failed),
        "reward_errors": float(np.isnan(step.rewards).mean()) if step.num_failed else 0.0,
        "sampler_difference": float(differences.max()),
        **(turns if turns["turns"] > 1 else {}),
    }
