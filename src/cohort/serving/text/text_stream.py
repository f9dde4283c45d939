"""Generated tokens as text, piece by piece, up to the first stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["TextStream"]

# a token may end inside a character, whose bytes decode to this until the rest is there
_UNFINISHED = "\ufffd"


class TextStream:
    """The text of one answer. Text that may be the beginning of a stop string is held back until that is known.

    Attributes:
        text: Everything given out so far.
        is_stopped: Whether a stop string was found; the text ends before it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], *, stop_strings: Sequence[str] = ()) -> None:
        """Decode with ``decode``, which turns tokens into text."""
        self._decode, self._stops = decode, tuple(stop_strings)
        self._tokens: list[int] = []
        # tokens before the first were decoded with those before the second, whose text has been taken
        self._context_start, self._taken = 0, 0
        self._held = ""
        self.text = ""
        self.is_stopped = False

    @property
    def may_stop(self) -> bool:
        """Whether its text can end the answer."""
        return bool(self._stops)

    def push(self, token: int) -> str:
        """Add a token and return what can be given out."""
        self._tokens.append(token)
        # a piece may depend on the token before it (spaces), but on none further back
        before = self._decode(self._tokens[self._context_start : self._taken])
        now = self._decode(self._tokens[self._context_start :])
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._context_start, self._taken = self._taken, len(self._tokens)
        return self._give(now[len(before) :], is_end=False)

    def end(self) -> str:
        """Return the rest: what was held back, and bytes that never became a character."""
        if self.is_stopped:
            return ""
        before = self._decode(self._tokens[self._context_start : self._taken])
        now = self._decode(self._tokens[self._context_start :])
        self._context_start = self._taken = len(self._tokens)
        return self._give(now[len(before) :], is_end=True)

    def _give(self, piece: str, *, is_end: bool) -> str:
        self._held += piece
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            given, self._held = self._held[: min(found)], ""
        else:
            keep = 0 if is_end else self._possible_stop()
            cut = len(self._held) - keep
            given, self._held = self._held[:cut], self._held[cut:]
        self.text += given
        return given

    def _possible_stop(self) -> int:
        """Return the length of the longest end of the held text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
