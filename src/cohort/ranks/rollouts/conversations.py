"""Answers of several turns: what a trial says, what is replied to it, and how both become one row that it trains on.

A conversation is one sequence of tokens. What the trial has said stays as it was drawn; a reply is put behind it as
the chat template writes it, so that the keys and values of the prompt are found again and the training pass reads what
the sampler read. Tokens of replies are not trained on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cohort.core.seeds import derive_seed
from cohort.data.tokenised import TokenisedRows
from cohort.metrics.rewards import ConversationRunner, Reply, Said
from cohort.ranks.rollouts.decoding import AnswerKey, AskedAnswer, Decoding
from cohort.ranks.rollouts.open_step import EndedConversation
from cohort.ranks.rollouts.scoring import Scorers
from cohort.training.rollouts.answered_step import GivenAnswer

__all__ = ["Conversations"]

# stands for what the trial said while a template is asked for what comes behind it
_SAID = "COHORT0SAID0THIS"


@dataclass(kw_only=True, eq=False)
class _Open:
    asked: AskedAnswer
    rows: TokenisedRows
    row_id: int
    number: int
    columns: Mapping[str, Any]
    messages: list[dict[str, Any]]
    is_chat: bool
    tokens: list[int] = field(default_factory=list)
    given: list[bool] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    turn: int = 0
    is_cut: bool = False
    is_finite: bool = True

    @property
    def num_left(self) -> int:
        """Tokens that may still come, replies included."""
        return self.asked.most_tokens - len(self.tokens)

    def answer(self) -> GivenAnswer:
        return GivenAnswer(
            tokens=np.array(self.tokens, dtype=np.int32),
            logps=np.array(self.logps, dtype=np.float64),
            is_cut=self.is_cut,
            is_finite=self.is_finite,
            given=np.array(self.given, dtype=np.bool_),
            turns=self.turn,
        )


class Conversations:
    """The conversations on their way of one executor."""

    def __init__(self, scorers: Scorers) -> None:
        self._scorers = scorers
        self._open: dict[AnswerKey, _Open] = {}
        # conversations whose reply is awaited, by runner and the number of the call
        self._awaited: dict[tuple[ConversationRunner, int], _Open] = {}
        self._next = 0
        self._ended: list[EndedConversation] = []

    @property
    def awaits(self) -> bool:
        """Whether a reply is on its way, or an end was not collected."""
        return bool(self._awaited or self._ended)

    def holds(self, key: AnswerKey) -> bool:
        return key in self._open

    def begin(self, asked: AskedAnswer, *, rows: TokenisedRows, row_id: int) -> AskedAnswer:
        """Begin a conversation and return what is asked first; ``asked`` bounds the tokens of all turns together."""
        columns: dict[str, Any] = json.loads(rows.columns[row_id]) if rows.columns else {}
        prompt = columns.get("prompt", rows.prompts[row_id])
        is_chat = not isinstance(prompt, str)
        self._open[asked.key] = _Open(
            asked=asked,
            rows=rows,
            row_id=row_id,
            number=self._next,
            columns=columns,
            messages=[dict(own) for own in prompt] if is_chat else [{"role": "user", "content": prompt}],
            is_chat=is_chat,
        )
        self._next += 1
        return asked

    def took(self, key: AnswerKey, answer: GivenAnswer) -> None:
        """Take what a trial said; its reply is asked for."""
        own = self._open[key]
        own.turn += 1
        own.tokens += answer.tokens.tolist()
        own.given += [False] * len(answer.tokens)
        own.logps += answer.logps.tolist()
        own.is_finite, own.is_cut = answer.is_finite, answer.is_cut
        if not answer.is_finite:
            self._end(own, math.nan)
            return
        (text,) = self._scorers.decoded(own.rows, [answer.tokens.tolist()])
        own.messages.append({"role": "assistant", "content": text})
        self._submit(own)

    def _submit(self, own: _Open) -> None:
        runner = self._scorers.conversation_runner(own.rows)
        said = Said(
            conversation=own.number,
            messages=own.messages,
            columns=own.columns,
            turn=own.turn,
            is_last=own.is_cut or own.turn >= runner.plan.most_turns,
            seed=own.asked.seed,
        )
        self._awaited[runner, runner.submit(said)] = own

    def collect(self, *, timeout: float | None) -> tuple[list[AskedAnswer], list[EndedConversation]]:
        """Return what is asked next, and the conversations that have ended, since the last call.

        Args:
            timeout: Most seconds to wait for a reply; None waits for one.
        """
        asked: list[AskedAnswer] = []
        runners = {runner for runner, _ in self._awaited}
        for runner in runners:
            # with several tasks no runner may hold up what another one has
            wait = 0.0 if self._ended or asked else timeout if len(runners) == 1 else min(timeout or 0.01, 0.01)
            wanted = [number for asking, number in self._awaited if asking is runner]
            for number, reply in runner.collect(wanted, wait).items():
                own = self._awaited.pop((runner, number))
                if (following := self._went_on(own, reply, name=runner.name)) is not None:
                    asked.append(following)
        ended, self._ended = self._ended, []
        return asked, ended

    def forget(self, trial_id: int) -> None:
        """Let go of the conversations of a trial."""
        for key in [key for key in self._open if key[0] == trial_id]:
            own = self._open.pop(key)
            for call in [call for call, awaited in self._awaited.items() if awaited is own]:
                del self._awaited[call]
                runner, number = call
                runner.forget(number)

    def _went_on(self, own: _Open, reply: Reply, *, name: str) -> AskedAnswer | None:
        if reply.finding is not None or not reply.messages:
            where = own.rows.sources[own.row_id]
            finding = None if reply.finding is None else f"{where}: the reward {name} {reply.finding}"
            self._end(own, reply.reward, finding=finding)
            return None
        tokens = self._reply_tokens(own, reply.messages)
        if len(tokens) >= own.num_left:
            # no room for another answer: what is this one worth, then?
            own.is_cut = True
            self._submit(own)
            return None
        own.messages += [dict(message) for message in reply.messages]
        own.tokens += tokens
        own.given += [True] * len(tokens)
        own.logps += [0.0] * len(tokens)
        return replace(
            own.asked,
            prompt_tokens=(*own.asked.prompt_tokens, *own.tokens),
            most_tokens=own.num_left,
            seed=derive_seed("turn", own.asked.seed, own.turn),
        )

    def _reply_tokens(self, own: _Open, reply: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens between what the trial said and what it says next."""
        tokenizer = self._scorers.tokenizer(own.rows)
        if not own.is_chat:
            text = "".join(str(message["content"]) for message in reply)
        else:
            messages = [*own.messages[:-1], {"role": "assistant", "content": _SAID}, *reply]
            text = tokenizer.apply_chat_template(
                messages, tools=own.columns.get("tools"), tokenize=False, add_generation_prompt=True
            ).rpartition(_SAID)[2]
        tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        # a turn that ended by itself has drawn what the template ends it with
        return tokens[1:] if tokens and own.tokens and tokens[0] == own.tokens[-1] else tokens

    def held(
        self, decoding: Decoding, asked: Sequence[AskedAnswer], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> list[EndedConversation]:
        """Hold conversations to their ends and return them in the order of what begins them; nothing else is open."""
        for first, row_id in zip(asked, row_ids, strict=True):
            decoding.ask(self.begin(first, rows=rows, row_id=row_id))
        found: dict[AnswerKey, EndedConversation] = {}
        while len(found) < len(asked):
            for key, answer in decoding.step() if decoding.has_work else ():
                self.took(key, answer)
            following, ended = self.collect(timeout=0.0 if decoding.has_work else None)
            for each in following:
                decoding.ask(each)
            found |= {each.key: each for each in ended}
        return [found[first.key] for first in asked]

    def _end(self, own: _Open, reward: float, *, finding: str | None = None) -> None:
        del self._open[own.asked.key]
        self._ended.append(EndedConversation(key=own.asked.key, answer=own.answer(), reward=reward, finding=finding))
