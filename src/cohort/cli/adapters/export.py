"""``cohort export``: an adapter directory, or the merged model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cohort.cli.arguments.options import (
    DebugOption,
    JsonOption,
    ModelOption,
    RunDirArgument,
    TrialOption,
    report_note,
    report_so_far,
)
from cohort.cli.exits import exits
from cohort.cli.hosted.submit import ServerOption, export_remote
from cohort.core.errors import InputError, Problem

if TYPE_CHECKING:
    from cohort.adapter_files.export import Exported
    from cohort.integrations.hub import HubRepository

__all__ = ["export"]

_BlocksOption = Annotated[int | None, typer.Option("--nblocks", min=2, metavar="N", help="bd: blocks of each factor.")]
_RankOption = Annotated[
    int | None, typer.Option("--rank", min=1, metavar="R", help="bd: total rank.  [default: as many parameters as now]")
]
_WhitenOption = Annotated[
    int | None,
    typer.Option("--whiten", min=1, metavar="ROWS", help="bd: lose least on the inputs of ROWS training rows."),
]
_DistillOption = Annotated[
    int, typer.Option("--distill-steps", min=0, metavar="N", help="bd: then train N steps to answer as before.")
]
_OuttypeOption = Annotated[
    Literal["f32", "f16"] | None, typer.Option("--outtype", help="gguf: number type of the factors.  [default: f32]")
]
_PushOption = Annotated[
    str | None,
    typer.Option("--push-to-hub", metavar="OWNER/NAME", help="Then upload it to the Hugging Face hub, private."),
]
_PublicOption = Annotated[bool, typer.Option("--public", help="Let everyone read a new repository of the hub.")]


def export(
    context: typer.Context,
    run_dir: RunDirArgument,
    to: Annotated[
        Literal["peft", "merged", "lora", "bd", "gguf"],
        typer.Option(
            "--to",
            help="The form; -o says where. peft: an adapter directory; merged: the base model with the adapter added "
            "in; lora: BD-LoRA with dense factors, which every server reads; bd: block-diagonal factors for tensor "
            "parallel servers; gguf: the adapter file that llama.cpp loads next to the base model.",
        ),
    ] = "peft",
    trial: TrialOption = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="A new directory.  [default: RUN_DIR/export-FORM]"),
    ] = None,
    model: ModelOption = None,
    nblocks: _BlocksOption = None,
    rank: _RankOption = None,
    swapped: Annotated[bool, typer.Option("--swapped", help="bd: exchange the factors that get blocks.")] = False,
    whiten: _WhitenOption = None,
    distill_steps: _DistillOption = 0,
    outtype: _OuttypeOption = None,
    push_to_hub: _PushOption = None,
    public: _PublicOption = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Export an adapter, convert it, or merge it into the base model.

    Unfinished runs use the best checkpoint so far and say so.
    """
    with exits(as_json=as_json, debug=debug):
        if server is not None:
            export_remote(run_dir, server, output=output, trial=trial, given=context.params, as_json=as_json)
            return
        from cohort.runs.directory import RunDirectory

        # before the import below, which loads torch: a wrong path is reported immediately
        RunDirectory.open(run_dir)
        from cohort.adapter_files.convert import BlockTarget
        from cohort.adapter_files.export import ExportForm, export_adapter
        from cohort.adapter_files.gguf_file import GgufType

        repository = _repository(push_to_hub, is_public=public)
        given = {"--nblocks": nblocks, "--rank": rank, "--swapped": swapped, "--whiten": whiten}
        require_blocks_options(to, given | {"--distill-steps": distill_steps})
        require_outtype(to, outtype)
        blocks = None if nblocks is None else BlockTarget(nblocks=nblocks, rank=rank, is_swapped=swapped)
        if blocks is not None:
            blocks = replace(blocks, whiten_rows=whiten or 0, distill_steps=distill_steps)
        form, kind = ExportForm(to), GgufType(outtype or "f32")
        exported = export_adapter(
            run_dir, form=form, trial_id=trial, output=output, model=model, blocks=blocks, gguf_type=kind
        )
        report_note(exported.note)
        report_note(exported.conversion)
        _print_exported(exported, repository, as_json=as_json)


def _print_exported(exported: Exported, repository: HubRepository | None, *, as_json: bool) -> None:
    """Print where an adapter is, here and, once it is uploaded, on the hub."""
    best = report_so_far(exported.so_far)
    shown = {"path": str(exported.path), "best_so_far": best, "conversion": exported.conversion}
    if repository is None:
        print(json.dumps(shown) if as_json else exported.path)
        return
    # before the upload, which may take long or fail: the folder is there whatever comes of it
    if not as_json:
        print(exported.path, flush=True)
    address = repository.push(exported.path)
    print(json.dumps(shown | {"hub": address}) if as_json else address)


def _repository(name: str | None, *, is_public: bool) -> HubRepository | None:
    """Return where to upload to, once it is known that the hub knows the user; None for nowhere."""
    if name is None:
        if is_public:
            hint = "Add --push-to-hub OWNER/NAME, or leave it out."
            raise InputError(Problem(where="--public", found="no --push-to-hub", allowed="with it", hint=hint))
        return None
    from cohort.integrations.hub import HubRepository

    repository = HubRepository(name=name, is_public=is_public)
    repository.check()
    return repository


def require_blocks_options(to: str, given: Mapping[str, object]) -> None:
    """Refuse ``--to bd`` without a number of blocks, and options of it with another form.

    Raises:
        InputError: either.
    """
    if to == "bd":
        if given["--nblocks"] is None:
            hint = "Write --nblocks 4, with the tensor parallel degree of the server."
            raise InputError(Problem(where="--to bd", found="no --nblocks", allowed="--to bd --nblocks N", hint=hint))
        return
    unused = [option for option, value in given.items() if value]
    if unused:
        hint = "Write --to bd, or leave it out."
        raise InputError(
            [Problem(where=option, found=f"{option} with --to {to}", allowed="--to bd", hint=hint) for option in unused]
        )


def require_outtype(to: str, outtype: str | None) -> None:
    """Refuse ``--outtype`` with another form than GGUF.

    Raises:
        InputError: it is given.
    """
    if outtype is not None and to != "gguf":
        found, hint = f"--outtype with --to {to}", "Write --to gguf, or leave it out."
        raise InputError(Problem(where="--outtype", found=found, allowed="--to gguf", hint=hint))
