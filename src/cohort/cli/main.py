"""The command ``cohort``: one file per verb, each of which loads its layer when it runs."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from cohort.cli.adapters.chat import chat
from cohort.cli.adapters.evaluate import evaluate
from cohort.cli.adapters.export import export
from cohort.cli.adapters.generate import generate
from cohort.cli.arguments.override_arguments import take_overrides
from cohort.cli.arguments.parameter_errors import PlainGroup
from cohort.cli.check import check
from cohort.cli.dashboard import dashboard
from cohort.cli.demo import demo
from cohort.cli.doctor import doctor
from cohort.cli.exits import interruption_words
from cohort.cli.hosted.keys import build_keys_app
from cohort.cli.hosted.service import service
from cohort.cli.hosted.submit import submit
from cohort.cli.hosted.tenants import build_tenants_app
from cohort.cli.init import init
from cohort.cli.plan import plan
from cohort.cli.queue import build_queue_app
from cohort.cli.report import report
from cohort.cli.resume import resume
from cohort.cli.run import run
from cohort.cli.serve import serve
from cohort.cli.status import status
from cohort.cli.trials import trials
from cohort.cli.tune import tune
from cohort.cli.work_ahead import end_work_ahead
from cohort.core.process.interrupts import exit_code_of, interrupting, interruption_behind, uninterrupted
from cohort.core.process.lost_readers import outliving_readers
from cohort.version import __version__

__all__ = ["build_app", "main"]


# what tables, plans and rows are drawn with
_PLAIN = str.maketrans({"─": "-", "━": "-", "│": "|", "└": "+", "·": ".", "…": "...", "⟦": "[[", "⟧": "]]"})


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        print(f"cohort {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train many LoRA adapters at once on one frozen language model and keep the best."""


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="cohort",
        cls=PlainGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    verbs = (
        demo,
        init,
        tune,
        run,
        plan,
        resume,
        status,
        trials,
        report,
        export,
        generate,
        chat,
        evaluate,
        serve,
        service,
        submit,
        dashboard,
        check,
        doctor,
    )
    for verb in verbs:
        app.command()(verb)
        # listed right after run, whose queue it changes
        if verb is run:
            app.add_typer(build_queue_app(), name="queue")
        # what is served, and to whom
        if verb is serve:
            app.add_typer(build_tenants_app(), name="tenants")
            app.add_typer(build_keys_app(), name="keys")
    return app


def _print_what_can_be_printed() -> None:
    """Print characters that the output's encoding lacks as escapes, and lines of drawings as dashes and bars."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        codecs.register_error("cohort", _in_plain_characters)
        sys.stdout.reconfigure(errors="cohort")


def _in_plain_characters(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    # others as Python prints them on stderr
    return text.encode("ascii", errors="backslashreplace").decode("ascii"), error.end


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (that of the process when ``arguments`` is None) and exit."""
    _print_what_can_be_printed()
    own, overrides = take_overrides(sys.argv[1:] if arguments is None else arguments)
    # what a verb does is worth more than what it prints
    with outliving_readers():
        try:
            # also while a verb loads what it needs: a supervisor's SIGTERM is as good a reason to save as Ctrl-C
            with interrupting():
                try:
                    build_app()(args=own, prog_name="cohort", obj=tuple(overrides))
                finally:
                    with uninterrupted():
                        end_work_ahead()
        except KeyboardInterrupt as error:
            _end_interrupted(error)
        except SystemExit as leaving:
            # Typer ends so, without a word and as if each signal were Ctrl-C, where no verb guards itself yet
            ended = leaving.__context__
            if ended is not None and (interruption := interruption_behind(ended)) is not None:
                _end_interrupted(interruption)
            raise


def _end_interrupted(error: KeyboardInterrupt) -> NoReturn:
    print(interruption_words(error), file=sys.stderr)
    sys.exit(exit_code_of(error))
