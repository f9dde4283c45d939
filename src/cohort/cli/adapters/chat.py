"""``cohort chat``: a conversation with the best adapter, on a terminal or through a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import (
    DebugOption,
    MaxNewTokensOption,
    ModelOption,
    RunDirArgument,
    SeedOption,
    TemperatureOption,
    TopPOption,
    TrialOption,
    report_note,
    report_so_far,
)
from cohort.cli.exits import exits, format_input_error
from cohort.core.process.interrupts import signal_of
from cohort.core.process.lost_readers import has_reader

if TYPE_CHECKING:
    from cohort.adapter_files.chat import Chat

__all__ = ["chat"]

# an adapter that was trained on prompts with a line break at their end answers its absence with that line break
_EMPTY = (
    "the answer is empty: end the message as the training prompts end. One with a line break: "
    "cohort generate RUN_DIR --prompt $'...\\n'"
)
_COMMANDS = {
    "/reset": "forget the conversation",
    "/base": "show the base model's answer to the last question",
    "/help": "show these commands",
    "/quit": "leave (so does Ctrl-D)",
}


def chat(
    run_dir: RunDirArgument,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", metavar="TEXT", help="A system message, for runs trained on conversations.", show_default=False
        ),
    ] = None,
    trial: TrialOption = None,
    max_new_tokens: MaxNewTokensOption = 512,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = 0,
    model: ModelOption = None,
    debug: DebugOption = False,
) -> None:
    """Talk with an adapter of a run.

    Messages are rendered like the training rows. /reset forgets the conversation, /base shows the base model's answer
    to the last question, /quit leaves. Ctrl-C stops an answer. Each line of piped input is a message.
    """
    with exits(debug=debug):
        from cohort.runs.directory import RunDirectory

        # before the import below, which loads torch: a wrong path is reported immediately
        RunDirectory.open(run_dir)
        from cohort.adapter_files.chat import open_chat
        from cohort.adapter_files.generate import GenerationSettings

        settings = GenerationSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed, use_base=False
        )
        talk = open_chat(run_dir, settings=settings, trial_id=trial, model=model, system=system)
        report_note(talk.note)
        report_so_far(talk.so_far)
        if sys.stdin.isatty():
            _greet(talk)
        for line in _lines():
            # an answer without a reader is not asked for
            if line == "/quit" or not has_reader(sys.stdout):
                break
            _respond(talk, line)


def _greet(talk: Chat) -> None:
    # arrow keys and earlier lines, where Python has the module
    with suppress(ImportError):
        import readline  # noqa: F401
    if not talk.remembers:
        print("note: this run was trained on single prompts: each message is answered alone", file=sys.stderr)
    print("; ".join(f"{name}: {what}" for name, what in _COMMANDS.items()), file=sys.stderr)


def _lines() -> Iterator[str]:
    """Yield what the user types, or the lines of a pipe; blank ones are left out."""
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input("> ") if is_terminal else sys.stdin.readline()
        except EOFError:
            print()
            return
        except KeyboardInterrupt as error:
            if not is_terminal or signal_of(error) is not signal.SIGINT:
                raise
            print("\n/quit or Ctrl-D leaves", file=sys.stderr)
            continue
        if not is_terminal and not line:
            return
        if line.strip():
            yield line.strip()


def _respond(talk: Chat, line: str) -> None:
    from cohort.core.errors import InputError

    command = line.split()[0]
    if line == "/reset":
        talk.reset()
        print("the conversation is forgotten", file=sys.stderr)
    elif line == "/help":
        print("\n".join(f"{name}  {what}" for name, what in _COMMANDS.items()), file=sys.stderr)
    elif command in _COMMANDS and line != "/base":
        print(f"write {command} alone; a message that begins with / needs a second /", file=sys.stderr)
    elif command.startswith("/") and not command.startswith("//") and line != "/base":
        known = ", ".join(_COMMANDS)
        hint = "A message that begins with / needs a second /."
        print(f"{command} is no command; there are {known}. {hint}", file=sys.stderr)
    else:
        try:
            # "//" is how a message begins with a slash
            _show(talk.ask_base() if line == "/base" else talk.ask(line.removeprefix("/")))
        except InputError as error:
            print(format_input_error(error), file=sys.stderr)


def _show(answer: Generator[str, None, None]) -> None:
    """Print an answer as it comes; Ctrl-C ends it there."""
    # what was said so far becomes the answer when the generator is closed
    is_empty = True
    with closing(answer) as pieces:
        try:
            for piece in pieces:
                is_empty = is_empty and not piece.strip()
                print(piece, end="", flush=True)
        except KeyboardInterrupt as error:
            print(flush=True)
            if signal_of(error) is not signal.SIGINT:
                raise
            print("stopped; the conversation continues", file=sys.stderr)
        else:
            print(flush=True)
            if is_empty:
                print(_EMPTY, file=sys.stderr)
