"""Steps of trials that train on their own answers. They are not in step with each other.

All of them decode together. A trial trains once it has all answers of its step and their rewards, in passes that it
shares with the others that are ready; the rest go on decoding. It asks for its next answers only after its own step.
So each trial is strictly on-policy, and no pass waits for one trial's longest answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from cohort.adapters.bank import AdapterBank
from cohort.core.events import ReadAnswer, StepDone, TrialFailed
from cohort.core.units import counted
from cohort.models.decoder import Decoder
from cohort.ranks.rollouts.conversations import Conversations
from cohort.ranks.rollouts.decoding import AnswerKey, Decoding
from cohort.ranks.rollouts.open_step import OpenStep
from cohort.ranks.rollouts.scoring import Scorers
from cohort.training.rollouts.answered_step import AnsweredStep, GivenAnswer
from cohort.training.step_samples import Resident

__all__ = ["RolloutSteps"]

# a reward that fails for all answers of a step may have been a machine's fault once
_MOST_TRIES = 2
# for a reward that is on its way, before the trials that have theirs train without it
_COMPANY_SECONDS = 0.05
# for a reply, before rewards of other tasks are looked for
_TURN_SECONDS = 0.05


class RolloutSteps:
    """The steps on their way in one executor.

    Attributes:
        decoding: Decodes the answers.
        scorers: Reward them.
    """

    def __init__(
        self,
        decoder: Decoder,
        bank: AdapterBank,
        *,
        slot_of: Callable[[int], int],
        train: Callable[[Sequence[AnsweredStep]], tuple[StepDone, ...]],
        token_budget: int,
        as_trained: bool = False,
    ) -> None:
        """Step trials in ``bank``.

        Args:
            slot_of: The slot of a trial.
            train: Trains trials on their answers.
            token_budget: Most positions whose keys and values are kept at once.
            as_trained: Decode with the products and tiles of training passes.
        """
        self._context, self._model_stops = decoder.config.max_position_embeddings, decoder.config.eos_token_ids
        self._train, self._open = train, dict[int, OpenStep]()
        # a trial that leaves and comes back begins its answers again
        self._versions = itertools.count()
        self._failures: list[TrialFailed] = []
        self.decoding = Decoding(decoder, bank, slot_of=slot_of, token_budget=token_budget, as_trained=as_trained)
        self.scorers = Scorers()
        self._conversations = Conversations(self.scorers)

    def forget(self, trial_id: int) -> None:
        """Let go of what a trial has on its way: it leaves the bank, or its weights are put back."""
        if self._open.pop(trial_id, None) is not None:
            self.decoding.forget(trial_id)
            self._conversations.forget(trial_id)

    def take_failures(self) -> tuple[TrialFailed, ...]:
        """Return the trials that failed since the last call."""
        failures, self._failures = tuple(self._failures), []
        return failures

    def step(self, residents: Sequence[Resident]) -> tuple[StepDone, ...]:
        """Train those of ``residents`` that are first to have all answers and rewards; return their events.

        A trial whose reward functions fail on every prompt of a step, twice, has failed; no other trial is touched.
        """
        for resident in residents:
            if resident.spec.trial_id not in self._open:
                self._begin(resident)
        wanted = [resident.spec.trial_id for resident in residents]
        while not self._ready(wanted):
            for key, answer in self.decoding.step() if self.decoding.has_work else ():
                self._took(key, answer)
            # without answers to decode there is nothing to do but wait
            waits = not self.decoding.has_work and not self._ready(wanted)
            if self._conversations.awaits:
                self._take_replies(timeout=_TURN_SECONDS if waits else 0.0)
                waits = False
            self._take_rewards(timeout=None if waits else 0.0)
        # answers that ended together are mostly rewarded together: one pass for all of them
        self._take_rewards(timeout=_COMPANY_SECONDS)
        ready = self._ready(wanted)
        failed = [_failure(step) for step in ready if step.has_failed]
        lost = {failure.trial_id for failure in failed}
        trained = [step for step in ready if step.resident.spec.trial_id not in lost]
        events = self._train([step.answered() for step in trained]) if trained else ()
        answers = {step.resident.spec.trial_id: self._to_read(step) for step in trained if step.is_finite}
        for step in ready:
            del self._open[step.resident.spec.trial_id]
        self._failures += failed
        return tuple(replace(event, answers=answers.get(event.trial_id, ())) for event in events)

    def _took(self, key: AnswerKey, answer: GivenAnswer) -> None:
        if self._conversations.holds(key):
            self._conversations.took(key, answer)
            return
        trial_id, prompt, place = key
        step = self._open[trial_id]
        step.took(prompt, place, answer)
        if not step.num_left:
            self._score(step)

    def _take_replies(self, *, timeout: float) -> None:
        asked, ended = self._conversations.collect(timeout=timeout)
        for following in asked:
            self.decoding.ask(following)
        for each in ended:
            self._open[each.key[0]].took_ended(each)

    def _begin(self, resident: Resident) -> None:
        step = self._open[resident.spec.trial_id] = OpenStep.begin(resident)
        stops = self.scorers.stop_ids(resident.rows, self._model_stops)
        version = next(self._versions)
        for asked in step.asked(version=version, context=self._context, stop_ids=stops):
            if self.scorers.converses(resident.rows):
                self._conversations.begin(asked, rows=resident.rows, row_id=step.row_ids[asked.key[1]])
            self.decoding.ask(asked)

    def _ready(self, wanted: Collection[int]) -> list[OpenStep]:
        """Return the steps that can be trained, or ended, now."""
        return [step for trial_id in wanted if (step := self._open[trial_id]).rewards is not None]

    def _score(self, step: OpenStep) -> None:
        if not step.is_finite:
            # its loss is no number, whatever rewards say
            step.rewards = self.scorers.unscored(step)
            return
        step.num_tries += 1
        step.batch = self.scorers.submit(step)

    def _take_rewards(self, *, timeout: float | None) -> None:
        for step, rewards, findings in self.scorers.collect(list(self._open.values()), timeout=timeout):
            step.rewards, step.findings, step.batch = rewards, findings, None
            if step.has_failed and step.num_tries < _MOST_TRIES:
                step.rewards, step.findings = None, ()
                self._score(step)

    def _to_read(self, step: OpenStep) -> tuple[ReadAnswer, ...]:
        return step.to_read(self.scorers.texts(step))

    def close(self) -> None:
        """End the reward functions' processes."""
        self.scorers.close()


def _failure(step: OpenStep) -> TrialFailed:
    words = step.findings[0] if step.findings else "no function gave any answer a reward"
    return TrialFailed(
        trial_id=step.resident.spec.trial_id,
        step=step.resident.step,
        message=f"no answer of step {step.resident.step + 1} could be rewarded, "
        f"{counted(step.num_tries, 'time')}: {words}",
    )
