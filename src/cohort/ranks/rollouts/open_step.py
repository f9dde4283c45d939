"""One trial's step on its way: its prompts, the answers that are there, and their rewards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.core.events import ReadAnswer
from cohort.core.seeds import derive_seed
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.rollouts.decoding import AnswerKey, AskedAnswer
from cohort.serving.sampler import Sampling
from cohort.training.rollouts.answered_step import AnsweredStep, GivenAnswer, objective_of
from cohort.training.step_samples import Resident

__all__ = ["EndedConversation", "OpenStep", "answer_seed", "reward_columns"]

# characters of a prompt's end and of an answer's beginning that people read in the report
_READ_PROMPT, _READ_ANSWER = 300, 600


def answer_seed(trial_seed: int, *, step: int, row_id: int, place: int) -> int:
    """Return what the draws of an answer depend on; the position is counted by the sampler."""
    return derive_seed("answer", trial_seed, step, row_id, place)


def reward_columns(rows: TokenisedRows, row_id: int) -> dict[str, Any]:
    """Return a row as its file has it, for reward functions."""
    columns: dict[str, Any] = json.loads(rows.columns[row_id]) if rows.columns else {}
    return columns


@dataclass(frozen=True, kw_only=True, eq=False)
class EndedConversation:
    """A conversation that does not go on.

    Attributes:
        reward: NaN where it has none.
        finding: What went wrong, with row and function named; None for nothing.
    """

    key: AnswerKey
    answer: GivenAnswer
    reward: float
    finding: str | None = None


@dataclass(kw_only=True, eq=False)
class OpenStep:
    """A step whose answers are on their way.

    Attributes:
        resident: The trial; it does not train before the step has all its answers and rewards.
        answers: By prompt and place in its group; None while it is on its way.
        batch: The number of the rewards that are awaited; None before all answers are there.
        rewards: float64 [G, S]; None before they are there.
        findings: What went wrong in reward functions, in words, in the order of the answers.
        num_tries: How often rewards were asked for.
        ended: Conversations that are there, by prompt and place.
    """

    resident: Resident
    row_ids: tuple[int, ...]
    answers: list[list[GivenAnswer | None]]
    num_left: int
    batch: int | None = None
    rewards: NDArray[np.float64] | None = None
    findings: tuple[str, ...] = ()
    num_tries: int = 0
    ended: dict[tuple[int, int], EndedConversation] = field(default_factory=dict)

    @classmethod
    def begin(cls, resident: Resident) -> OpenStep:
        row_ids = tuple(resident.order.batch(resident.step))
        size = objective_of(resident).num_generations
        return cls(
            resident=resident,
            row_ids=row_ids,
            answers=[[None] * size for _ in row_ids],
            num_left=size * len(row_ids),
        )

    def asked(self, *, version: int, context: int, stop_ids: frozenset[int]) -> Iterator[AskedAnswer]:
        """Yield all answers that the step wants."""
        spec, objective = self.resident.spec, objective_of(self.resident)
        sampling = Sampling(temperature=objective.temperature, top_p=objective.top_p)
        for prompt, row_id in enumerate(self.row_ids):
            tokens = tuple(self.resident.rows.sample(row_id).tokens.tolist())
            for place in range(objective.num_generations):
                yield AskedAnswer(
                    key=(spec.trial_id, prompt, place),
                    version=(self.resident.step, version),
                    prompt_tokens=tokens,
                    most_tokens=min(objective.max_completion_length, context - len(tokens)),
                    sampling=sampling,
                    seed=answer_seed(spec.seed, step=self.resident.step, row_id=row_id, place=place),
                    stop_ids=stop_ids,
                )

    def took(self, prompt: int, place: int, answer: GivenAnswer) -> None:
        self.answers[prompt][place] = answer
        self.num_left -= 1

    def took_ended(self, ended: EndedConversation) -> None:
        """Take a conversation with its reward; the rewards of the step are there with the last one."""
        _, prompt, place = ended.key
        self.took(prompt, place, ended.answer)
        self.ended[prompt, place] = ended
        if self.num_left:
            return
        rewards = np.full((len(self.answers), len(self.answers[0])), np.nan)
        for found, own in self.ended.items():
            rewards[found] = own.reward
        self.rewards = rewards
        self.findings = tuple(own.finding for _, own in sorted(self.ended.items()) if own.finding is not None)
        # a conversation is not asked again: what was said is part of it
        self.num_tries = 1

    @property
    def given(self) -> tuple[tuple[GivenAnswer, ...], ...]:
        """All answers; they are there."""
        return tuple(tuple(answer for answer in group if answer is not None) for group in self.answers)

    @property
    def is_finite(self) -> bool:
        return all(answer.is_finite for group in self.given for answer in group)

    @property
    def has_failed(self) -> bool:
        """Whether not one answer has a reward, although all could be rewarded."""
        assert self.rewards is not None, "rewards are there"
        return self.is_finite and not np.isfinite(self._counted).any()

    @property
    def _counted(self) -> NDArray[np.float64]:
        """The rewards [G, S], without those of groups in which a function failed."""
        assert self.rewards is not None, "rewards are there"
        if not self.findings:
            return self.rewards
        return np.where(np.isfinite(self.rewards).all(axis=1, keepdims=True), self.rewards, np.nan)

    def answered(self) -> AnsweredStep:
        """Return the step as it is trained; groups with a failed reward teach nothing."""
        return AnsweredStep(
            resident=self.resident,
            row_ids=self.row_ids,
            prompts=tuple(self.resident.rows.sample(row_id).tokens for row_id in self.row_ids),
            answers=self.given,
            rewards=self._counted,
            num_failed=len(self.findings),
        )

    def to_read(self, texts: Sequence[str]) -> tuple[ReadAnswer, ...]:
        """Return the best and the worst answer of the group that differs most; ``texts`` are those of all answers."""
        assert self.rewards is not None, "rewards are there"
        size = len(self.answers[0])
        low = np.nan_to_num(self.rewards, nan=np.inf).min(axis=1)
        high = np.nan_to_num(self.rewards, nan=-np.inf).max(axis=1)
        group = int(np.argmax(np.where(np.isfinite(high - low), high - low, -1.0)))
        own = np.nan_to_num(self.rewards[group], nan=-np.inf)
        places = dict.fromkeys([int(own.argmax()), int(own.argmin())])
        prompt = self.resident.rows.prompts[self.row_ids[group]]
        return tuple(
            ReadAnswer(
                prompt=prompt[-_READ_PROMPT:],
                text=texts[group * size + place][:_READ_ANSWER],
                reward=float(self.rewards[group, place]),
            )
            for place in places
        )
