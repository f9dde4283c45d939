"""A conversation with an adapter of a run, whose turns are rendered like its training rows."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from cohort.adapter_files.base_model import open_base
from cohort.adapter_files.choose import BestSoFar
from cohort.adapter_files.generate import GenerationSettings
from cohort.adapter_files.prompts import PromptRenderer
from cohort.adapter_files.run_model import RunModel, read_chosen
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.data.examples import Message
from cohort.runs.directory import RunDirectory
from cohort.serving.generate import GenerateRequest

__all__ = ["Chat", "open_chat"]

# a token may end inside a character, whose bytes decode to this until the rest is there
_UNFINISHED = "\ufffd"
# of the model's context, at least this share is left for an answer before earlier turns are forgotten
_ANSWER_SHARE = 0.25


def open_chat(
    run_directory: Path,
    *,
    settings: GenerationSettings,
    trial_id: int | None = None,
    model: str | None = None,
    system: str | None = None,
) -> Chat:
    """Load an adapter of a run and begin a conversation with it.

    Args:
        trial_id: A trial; None: the best one, or of an unfinished run the best checkpoint so far.
        model: Where the base model is now, if not where the run has it.
        system: A message before the first one, for runs that were trained on conversations.

    Raises:
        InputError: there is no such adapter, the base model is gone or another one, or the run takes no system message.
    """
    directory = RunDirectory.open(run_directory)
    base = open_base(directory, model=model)
    adapter, so_far = (None, None) if settings.use_base else read_chosen(directory, trial_id=trial_id, base=base)
    if system is not None and base.facts.inputs.is_chat is not True:
        raise InputError(
            Problem(
                where=Place(option="command line --system"),
                found="a system message, but the run was trained on text, not on conversations",
                allowed="no --system",
                hint="Leave it out, or write it into the prompt as the training rows have it.",
            )
        )
    loaded = RunModel(base)
    loaded.hold([] if adapter is None else [adapter])
    renderer = PromptRenderer(base=base, tokenizer=loaded.tokenizer, is_raw=settings.is_raw)
    return Chat(loaded, renderer, settings=settings, system=system, so_far=so_far)


class Chat:
    """The turns so far, and the answers to come.

    A run that was trained on single prompts never saw an earlier turn, so each of its prompts is answered alone.

    Attributes:
        so_far: The checkpoint of an unfinished run.
        note: For the user, about the base model and the device.
    """

    def __init__(
        self,
        loaded: RunModel,
        renderer: PromptRenderer,
        *,
        settings: GenerationSettings,
        system: str | None = None,
        so_far: BestSoFar | None = None,
    ) -> None:
        self._loaded, self._renderer, self._settings = loaded, renderer, settings
        self._system = () if system is None else (Message(role="system", content=system, trained=False),)
        self._turns: list[Message] = []
        self._last_asked: tuple[Message, ...] = ()
        self._num_asked = 0
        self.so_far, self.note = so_far, loaded.note

    @property
    def remembers(self) -> bool:
        """Whether earlier turns are part of the next prompt."""
        return self._renderer.is_chat

    @property
    def num_turns(self) -> int:
        """Messages that the next prompt will hold before the user's, the system's aside."""
        return len(self._turns)

    def reset(self) -> None:
        """Forget all turns."""
        self._turns.clear()
        self._last_asked = ()

    def ask(self, text: str) -> Generator[str, None, None]:
        """Yield the answer piece by piece. If the caller closes it early, the answer is what was generated so far.

        Raises:
            InputError: the message alone is longer than the model's context, empty, or refused by the chat template;
                the conversation is then as it was.
        """
        asked = (*self._turns, Message(role="user", content=text, trained=False))
        tokens, asked = self._fitting(asked)
        self._last_asked = asked
        self._num_asked += 1
        answer = ""
        try:
            with closing(self._stream(tokens, slot=self._loaded.slots[0] if self._loaded.slots else None)) as pieces:
                for piece in pieces:
                    answer += piece
                    yield piece
        finally:
            if self.remembers:
                self._turns = [*asked, Message(role="assistant", content=answer, trained=False)]

    def ask_base(self) -> Generator[str, None, None]:
        """Yield the base model's answer to the last question; the conversation stays as it is.

        Raises:
            InputError: nothing has been asked.
        """
        if not self._last_asked:
            raise InputError(
                Problem(
                    where="/base",
                    found="no question yet",
                    allowed="/base after a question, which the base model answers as well",
                    hint="Ask something first.",
                )
            )
        yield from self._stream(self._encode(self._last_asked), slot=None)

    def _encode(self, asked: tuple[Message, ...]) -> list[int]:
        if self.remembers:
            return self._renderer.encode(self._renderer.of_messages((*self._system, *asked)))
        return self._renderer.encode(self._renderer.of_text(asked[-1].content))

    def _fitting(self, asked: tuple[Message, ...]) -> tuple[list[int], tuple[Message, ...]]:
        """Return the prompt, and the messages that are in it: the earliest turns go where they leave no room."""
        context = self._loaded.decoder.config.max_position_embeddings
        room = min(self._settings.max_new_tokens, int(context * _ANSWER_SHARE))
        tokens = self._encode(asked)
        while len(tokens) > context - room and len(asked) > 1:
            # a question goes with its answer
            asked = asked[2:]
            tokens = self._encode(asked)
        if not 0 < len(tokens) < context:
            raise InputError(
                Problem(
                    where="message",
                    found=f"{len(tokens)} tokens",
                    allowed=f"1 to {context - 1} tokens (the model's context is {context})",
                    hint="Shorten it." if tokens else "Write something.",
                )
            )
        return tokens, asked

    def _stream(self, tokens: list[int], *, slot: int | None) -> Generator[str, None, None]:
        request = GenerateRequest(
            prompt_tokens=tokens,
            max_new_tokens=self._settings.max_new_tokens,
            slot=slot,
            # the same words asked twice are drawn with other numbers, and both models with the same ones
            seed=self._settings.seed + self._num_asked,
        )
        own: list[int] = []
        shown = 0
        with closing(self._loaded.stream([request], sampling=self._settings.sampling)) as picks:
            for picked in picks:
                if picked.token is not None:
                    own.append(picked.token)
                text = self._loaded.text(own)
                if picked.is_last or not text.endswith(_UNFINISHED):
                    if len(text) > shown:
                        yield text[shown:]
                    shown = max(shown, len(text))
