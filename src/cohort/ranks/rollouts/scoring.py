"""From tokens of answers to rewards: texts, and the reward functions of each task in their processes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.data.chat import use_chat_template
from cohort.data.tokenised import AnswerScoring, TokenisedRows
from cohort.metrics.rewards import ConversationRunner, RewardPlan, RewardRunner, Rewards
from cohort.models.tokenizer import load_tokenizer
from cohort.ranks.rollouts.open_step import OpenStep, reward_columns
from cohort.serving.generate import end_of_answer_ids

__all__ = ["Scorers"]

# how long one of several runners is waited for before the next one is asked
_TURN_SECONDS = 0.01

Scored = tuple[OpenStep, NDArray[np.float64], tuple[str, ...]]


class Scorers:
    """The tokenizers and the reward functions of the tasks of one executor, each opened when it is first needed."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, Any] = {}
        self._runners: dict[Hashable, RewardRunner] = {}
        self._conversations: dict[Hashable, ConversationRunner] = {}
        # rewards that have come and have not been asked for yet
        self._inboxes: dict[Hashable, dict[int, Rewards]] = {}

    def stop_ids(self, rows: TokenisedRows, model_ids: Sequence[int]) -> frozenset[int]:
        """Return the tokens that end an answer."""
        return end_of_answer_ids(self.tokenizer(rows), model_ids)

    def decoded(self, rows: TokenisedRows, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of answers."""
        texts: list[str] = self.tokenizer(rows).batch_decode(
            [list(map(int, own)) for own in tokens], skip_special_tokens=True
        )
        return texts

    def texts(self, step: OpenStep) -> list[str]:
        """Return the texts of all answers of a step, group by group."""
        return self.decoded(step.resident.rows, [answer.tokens.tolist() for group in step.given for answer in group])

    def submit(self, step: OpenStep) -> int:
        """Ask for the rewards of a step whose answers are all there; return the number of the batch."""
        size = len(step.answers[0])
        row_ids = [row_id for row_id in step.row_ids for _ in range(size)]
        tokens = [answer.tokens.tolist() for group in step.given for answer in group]
        return self.ask(step.resident.rows, row_ids, tokens)

    def ask(self, rows: TokenisedRows, row_ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> int:
        """Ask for the rewards of answers, each to the row of the same place."""
        columns = [reward_columns(rows, row_id) for row_id in row_ids]
        return self._runner(_scoring(rows)).submit(
            prompts=[own.get("prompt", rows.prompts[row_id]) for own, row_id in zip(columns, row_ids, strict=True)],
            completions=self.decoded(rows, tokens),
            columns=columns,
            sources=[rows.sources[row_id] for row_id in row_ids],
            completion_ids=[list(own) for own in tokens],
        )

    def unscored(self, step: OpenStep) -> NDArray[np.float64]:
        """Return rewards of a step that has none."""
        return np.full((len(step.row_ids), len(step.answers[0])), np.nan)

    def collect(self, steps: Collection[OpenStep], *, timeout: float | None) -> Iterator[Scored]:
        """Yield the steps whose rewards have come, with these [G, S] and what went wrong.

        Args:
            timeout: Most seconds to wait for the first of them; None waits for it.
        """
        by_plan: dict[Hashable, list[OpenStep]] = {}
        for step in steps:
            if step.batch is not None:
                by_plan.setdefault(_scoring(step.resident.rows).rewards, []).append(step)
        for plan, own in by_plan.items():
            # with several tasks no runner may hold up what another one has
            self._fetch(plan, timeout=timeout if timeout == 0 or len(by_plan) == 1 else _TURN_SECONDS)
            inbox = self._inboxes[plan]
            for step in own:
                if step.batch in inbox:
                    rewards = inbox.pop(step.batch)
                    shape = (len(step.row_ids), len(step.answers[0]))
                    yield step, np.asarray(rewards.total, dtype=np.float64).reshape(shape), _in_words(rewards)
            # of trials that left meanwhile
            inbox.clear()

    def rewards_of(self, rows: TokenisedRows, batches: Sequence[int]) -> list[tuple[list[float], tuple[str, ...]]]:
        """Wait for the rewards of some batches of :meth:`ask`, in their order; what else comes is kept."""
        plan = _scoring(rows).rewards
        inbox = self._inboxes[plan]
        while set(batches) - set(inbox):
            self._fetch(plan, timeout=None)
        found = [inbox.pop(batch) for batch in batches]
        return [(list(rewards.total), _in_words(rewards)) for rewards in found]

    def _fetch(self, plan: Hashable, *, timeout: float | None) -> None:
        self._inboxes[plan].update(self._runners[plan].collect(timeout))

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()
        for replying in self._conversations.values():
            replying.close()
        self._runners.clear()
        self._conversations.clear()

    def converses(self, rows: TokenisedRows) -> bool:
        """Whether answers to the rows are replied to."""
        plan = _scoring(rows).rewards
        return isinstance(plan, RewardPlan) and plan.most_turns > 0

    def conversation_runner(self, rows: TokenisedRows) -> ConversationRunner:
        """Return what replies to answers to the rows."""
        plan = _scoring(rows).rewards
        assert isinstance(plan, RewardPlan), "rows of prompts carry their reward functions"
        if plan not in self._conversations:
            self._conversations[plan] = ConversationRunner(plan)
        return self._conversations[plan]

    def tokenizer(self, rows: TokenisedRows) -> Any:
        scoring = _scoring(rows)
        key = f"{scoring.tokenizer} {scoring.chat_template}"
        if key not in self._tokenizers:
            self._tokenizers[key] = load_tokenizer(scoring.tokenizer)
            use_chat_template(self._tokenizers[key], scoring.chat_template)
        return self._tokenizers[key]

    def _runner(self, scoring: AnswerScoring) -> RewardRunner:
        if scoring.rewards not in self._runners:
            plan = scoring.rewards
            assert isinstance(plan, RewardPlan), "rows of prompts carry their reward functions"
            self._runners[plan], self._inboxes[plan] = RewardRunner(plan), {}
        return self._runners[scoring.rewards]


def _scoring(rows: TokenisedRows) -> AnswerScoring:
    assert rows.scoring is not None, "rows of an objective that samples answers say how these are rewarded"
    return rows.scoring


def _in_words(rewards: Rewards) -> tuple[str, ...]:
    return tuple(map(str, rewards.findings))
