"""A process that has imported everything once and runs each command in a fork of itself, so that it can be killed.

Reads one JSON command a line: ``act`` (tune or resume), ``folder``, ``run``, ``sections`` and perhaps ``fault``; writes
the child's process id at once and its exit as ``{"status": ...}`` when it ends. ``fault`` is
``{"call": "fsync" | "replace", "number": n}``: the process dies by SIGKILL in the n-th such call of the operating
system, the file that is being flushed torn in half before. ``asks`` is what is asked of the trials, each with the steps
after which it is; with ``dies_at``, the process dies by SIGKILL after so many. Only asks make checkpoints then. With
``dies_behind`` it dies while best checkpoints of trials that lost follow the results, none of which is written.

The act ``command`` is a command line, in ``arguments``; its output goes to the files ``stdout`` and ``stderr`` of the
folder. ``num_ranks`` has a run train in that many processes, with checkpoints as rare as they are for users.

``signal`` is ``{"at": "module:function", "number": s, "call": n, "after": path, "again_at": "module:function",
"to_workers": false}``: the process sends itself the signal at the n-th call of the function (of those once ``after``
exists), and at the first call of ``again_at`` a second time; with ``to_workers`` its child processes get it first.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

# loaded once here, not in every child when it loads its tokenizer
from transformers import PreTrainedTokenizerFast  # noqa: F401

from cohort.checkpoints.state_writer import StateWriter
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.cli.main import main as main_of_command_line
from cohort.core.errors import InputError
from cohort.core.process.interrupts import exit_code_of, interrupting
from cohort.engine.train.spare_writer import SpareWriter
from cohort.engine.tune import RunOptions, resume, tune
from tests.end_to_end.stopped.sent_signals import call_before, send_signal
from tests.end_to_end.tiny_tasks import Asking, TickingClock, tiny_task

# each tick makes a checkpoint, a part of the states goes to files early, and three trials of six fit at once: more
# writes to be killed in, and rotation
OPTIONS = RunOptions(checkpoint_seconds=1e-9, checkpoint_share=math.inf, host_memory_bytes=100_000, token_budget=40)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in(call: str, number: int) -> None:
    """Make the ``number``-th call of ``os.<call>`` from now on the last thing this process does."""
    original = getattr(os, call)
    seen = 0

    def faulty(*arguments: Any, **options: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            if call == "fsync" and os.path.isfile(f"/proc/self/fd/{arguments[0]}"):
                # what was written but never flushed may be lost in part
                path = os.readlink(f"/proc/self/fd/{arguments[0]}")
                os.truncate(path, os.path.getsize(path) // 2)
            _die()
        return original(*arguments, **options)

    setattr(os, call, faulty)


def _command(command: dict[str, Any]) -> None:
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(Path(command["folder"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(command["folder"])
    main_of_command_line(command["arguments"])


def _carry_out(command: dict[str, Any]) -> None:
    # as in a terminal: a test suite that a script runs in the background ignores Ctrl-C, and its children with it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if (sent := command.get("signal")) is not None:
        raise_it = partial(send_signal, sent["number"], to_workers=sent.get("to_workers", False))
        call_before(sent["at"], raise_it, call=sent.get("call", 1), after=sent.get("after"))
        if sent.get("again_at"):
            call_before(sent["again_at"], raise_it)
    if command["act"] == "command":
        _command(command)
        return
    if command.get("fault"):
        _die_in(command["fault"]["call"], command["fault"]["number"])
    if command.get("dies_behind"):
        for kind, name, instead in (
            (TrialStateStore, "write_ahead", lambda *_: None),
            (StateWriter, "_write_behind", lambda *_: time.sleep(600)),
            (SpareWriter, "wait", lambda _: _die()),
        ):
            setattr(kind, name, instead)
    torch.set_num_threads(command.get("threads", 1))
    with interrupting():
        _carry_out_run(command, Path(command["run"]))


def _carry_out_run(command: dict[str, Any], run: Path) -> None:
    if "asks" in command:
        asking = Asking(run, command["asks"], dies_at=command.get("dies_at"))
        options = RunOptions(checkpoint_seconds=math.inf, token_budget=40)
        begin = partial(tune, tiny_task(Path(command["folder"]), **command["sections"]))
        act = resume if command["act"] == "resume" else begin
        act(run, options=options, watcher=asking, clock=TickingClock())
        return
    # by default it saves its state when it is stopped, and seldom before
    is_saved_seldom = command.get("dies_behind") or "num_ranks" in command
    options = RunOptions(token_budget=40, num_ranks=command.get("num_ranks")) if is_saved_seldom else OPTIONS
    if command["act"] == "resume":
        resume(run, options=options)
    else:
        tune(tiny_task(Path(command["folder"]), **command["sections"]), run, options=options)


def _child(command: dict[str, Any]) -> None:
    status = 0
    try:
        _carry_out(command)
    except SystemExit as end:
        status = int(end.code or 0)
    except KeyboardInterrupt as error:
        status = exit_code_of(error)
    except InputError as error:
        print(error, file=sys.stderr)
        status = 2
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve until the input ends."""
    # what verbs of the command line import when they run
    for name in ("cohort.cli.tables.run_results", "cohort.cli.terminal.progress", "cohort.engine.recovery"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    # what is imported stays: a child that collects would copy all of it
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        process_id = os.fork()
        if process_id == 0:
            _child(command)
        print(json.dumps({"process_id": process_id}), flush=True)
        _, status = os.waitpid(process_id, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
