"""``cohort serve``: answer OpenAI clients with a base model and its adapters."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption, ModelOption, report_note
from cohort.cli.arguments.server_options import ApiKeysOption, HostOption, given_keys, require_packages, require_shown
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.service.opening import Opened
    from cohort.service.settings import ServedSettings, ServerSettings
    from cohort.serving.adapter_pool_settings import AdapterPoolSettings
    from cohort.serving.scheduler import SchedulerSettings

__all__ = ["serve"]

_NEEDED = ("fastapi", "prometheus_client", "uvicorn")
MOST_SEQUENCES = 256


_Model = Annotated[
    str, typer.Argument(metavar="MODEL|RUN_DIR", help="A base model, or a run: its base model and best adapter.")
]
_Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapters",
        metavar="[NAME=]DIR",
        help="An adapter's directory, or a folder of them; can be repeated.",
        show_default=False,
    ),
]
_Trials = Annotated[
    list[int] | None,
    typer.Option("--trial", metavar="N", help="A trial of the run; can be repeated.  [default: the best]"),
]
_Port = Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="0 takes a free port.")]
_Names = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name", metavar="NAME", help="A name of the base model; can be repeated.  [default: MODEL]"
    ),
]
_ChatTemplate = Annotated[
    str | None, typer.Option("--chat-template", metavar="NAME", help="A chat template by name.  [default: the model's]")
]
_ModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        metavar="TOKENS",
        min=2,
        help="Most tokens of prompt and answer.  [default: the model's context]",
    ),
]
_NumSeqs = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs",
        metavar="N",
        min=1,
        help=f"Most sequences in a pass.  [default: {MOST_SEQUENCES}, or all its tokens]",
    ),
]
_BatchedTokens = Annotated[
    int, typer.Option("--max-num-batched-tokens", metavar="TOKENS", min=16, help="Most tokens in a pass.")
]
_Cache = Annotated[
    float | None,
    typer.Option(
        "--kv-cache-gib",
        metavar="GIB",
        min=0.0,
        help="Memory for keys and values.  [default: 1 on a CPU; what a GPU has free]",
    ),
]
_Loras = Annotated[int, typer.Option("--max-loras", metavar="N", min=1, help="Most adapters in a pass.")]
_LoraRank = Annotated[int, typer.Option("--max-lora-rank", metavar="R", min=1, help="Largest rank of an adapter.")]
_CpuLoras = Annotated[int, typer.Option("--max-cpu-loras", metavar="N", min=1, help="Most adapters in host memory.")]
_Waiting = Annotated[
    int, typer.Option("--max-waiting", metavar="N", min=1, help="Most open requests; further ones get status 429.")
]
_RuntimeLora = Annotated[
    bool, typer.Option("--allow-runtime-lora", help="Let clients load and unload adapters below --lora-root.")
]
_LoraRoot = Annotated[
    Path | None, typer.Option("--lora-root", metavar="DIR", help="Where clients may load adapters from.")
]
_Drain = Annotated[
    float,
    typer.Option("--drain-seconds", metavar="SECONDS", min=0.0, help="After SIGTERM, running requests have this long."),
]
_TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size",
        "-tp",
        metavar="M",
        min=1,
        help="GPUs that the model is divided over; with --gpus 0, processes of the CPU.",
    ),
]
_Quantization = Annotated[
    str | None,
    typer.Option(
        "--quantization", metavar="FORMAT", help="none | fp8 | int8 | nf4.  [default: the run's; none for a model]"
    ),
]
_Tinker = Annotated[
    Path | None,
    typer.Option(
        "--tinker",
        metavar="DIR",
        help="Let clients of Thinking Machines' tinker package train on the model, too; their checkpoints go to DIR.",
    ),
]
_TrainedModels = Annotated[
    int,
    typer.Option("--max-trained-models", metavar="N", min=1, help="With --tinker: most models in training at once."),
]
_Queue = Annotated[
    Path | None,
    typer.Option(
        "--queue",
        metavar="DIR",
        help="Train the tasks of a queue on the model, too, between requests; `cohort queue add` adds some.",
    ),
]
_SweepTrials = Annotated[
    int, typer.Option("--max-sweep-trials", metavar="N", min=1, help="With --queue: most trials in training at once.")
]
_MaxPass = Annotated[
    float,
    typer.Option(
        "--max-pass-ms", metavar="MS", min=1.0, help="While requests wait, no pass of training takes longer than this."
    ),
]
_Dashboard = Annotated[
    Path | None,
    typer.Option(
        "--dashboard",
        metavar="RUNS_DIR",
        help="Also show the runs of a folder, and a playground for the models, at /dashboard.",
    ),
]
_Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=0, max=1, help="0: serve on the CPU.")]


def serve(
    model: _Model,
    adapters: _Adapters = None,
    trial: _Trials = None,
    host: HostOption = "127.0.0.1",
    port: _Port = 8000,
    api_key: ApiKeysOption = None,
    served_model_name: _Names = None,
    chat_template: _ChatTemplate = None,
    max_model_len: _ModelLen = None,
    max_num_seqs: _NumSeqs = None,
    max_num_batched_tokens: _BatchedTokens = 2048,
    kv_cache_gib: _Cache = None,
    max_loras: _Loras = 16,
    max_lora_rank: _LoraRank = 64,
    max_cpu_loras: _CpuLoras = 256,
    max_waiting: _Waiting = 1024,
    allow_runtime_lora: _RuntimeLora = False,
    lora_root: _LoraRoot = None,
    drain_seconds: _Drain = 60.0,
    tensor_parallel_size: _TensorParallel = 1,
    quantization: _Quantization = None,
    gpus: _Gpus = None,
    tinker: _Tinker = None,
    max_trained_models: _TrainedModels = 16,
    queue: _Queue = None,
    max_sweep_trials: _SweepTrials = 16,
    max_pass_ms: _MaxPass = 250.0,
    dashboard: _Dashboard = None,
    base: ModelOption = None,
    debug: DebugOption = False,
) -> None:
    """Serve a base model and many adapters to OpenAI clients.

    A request names the base model or an adapter as its model. Needs the extra `serve`.
    """
    with exits(debug=debug):
        require_packages("cohort serve", (*_NEEDED, *(("google.protobuf",) if tinker is not None else ())))
        root = _lora_root(lora_root, allows=allow_runtime_lora)
        from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings

        limits = ServerLimits(max_waiting=max_waiting, drain_seconds=drain_seconds)
        served = ServedSettings(
            model=model,
            adapters=tuple(adapters or ()),
            trials=tuple(trial or ()),
            names=tuple(served_model_name or ()),
            model_path=base,
            chat_template=chat_template,
            max_model_len=max_model_len,
            cache_bytes=None if kv_cache_gib is None else int(kv_cache_gib * 2**30),
            gpus="auto" if gpus is None else gpus,
            quantization=quantization,
            tensor_parallel_size=tensor_parallel_size,
            tinker=tinker,
            max_trained_models=max_trained_models,
            queue=queue,
            max_sweep_trials=max_sweep_trials,
            max_pass_seconds=max_pass_ms / 1000,
            pool=_pool(max_loras, max_lora_rank, max_cpu_loras),
            scheduler=_scheduler(max_num_seqs, max_num_batched_tokens),
        )
        settings = ServerSettings(api_keys=given_keys(api_key), lora_root=root, limits=limits, dashboard=dashboard)
        _serve(served, settings, host=host, port=port)


def _serve(served: ServedSettings, settings: ServerSettings, *, host: str, port: int) -> None:
    if settings.dashboard is not None:
        require_shown(settings.dashboard, host=host, keys=settings.api_keys)
    from cohort.service.listening import listen
    from cohort.service.opening import open_served
    from cohort.service.server import run_server

    # the address before the model, which takes long to load
    with listen(host, port) as listener:
        opened = open_served(served, settings.limits)
        finished = run_server(opened, settings, listener=listener, on_ready=lambda at: _report(opened, at, settings))
    _say_how_it_ended(finished=finished, lost=opened.thread.lost)


def _pool(max_loras: int, max_lora_rank: int, max_cpu_loras: int) -> AdapterPoolSettings:
    from cohort.serving.adapter_pool_settings import AdapterPoolSettings

    return AdapterPoolSettings(max_loras=max_loras, max_lora_rank=max_lora_rank, max_cpu_loras=max_cpu_loras)


def _scheduler(num_seqs: int | None, batched_tokens: int) -> SchedulerSettings:
    from cohort.serving.scheduler import SchedulerSettings

    most = _sequences(num_seqs, most=batched_tokens)
    return SchedulerSettings(max_num_seqs=most, max_num_batched_tokens=batched_tokens)


def _sequences(asked: int | None, *, most: int) -> int:
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place

    if asked is None:
        return min(MOST_SEQUENCES, most)
    if asked > most:
        raise InputError(
            Problem(
                where=Place(option="command line --max-num-seqs"),
                found=f"{asked} with --max-num-batched-tokens {most}",
                allowed=f"at most {most}: each sequence may take a token of a pass",
                hint=f"Write --max-num-seqs {most} or less, or raise --max-num-batched-tokens.",
            )
        )
    return asked


def _say_how_it_ended(*, finished: bool, lost: str | None) -> None:
    if lost is None:
        print("stopped" if finished else "stopped; some requests were cut off", file=sys.stderr)
        return
    print(f"error: {lost}", file=sys.stderr, flush=True)
    # a GPU that waits for a lost one in a collective would keep the process from ending
    os._exit(1)


def _report(opened: Opened, address: str, settings: ServerSettings) -> None:
    for note in opened.notes:
        report_note(note)
    adapters = [status.name for status in opened.model.pool.statuses() if not opened.model.is_private(status.name)]
    names = [*opened.model.names, *adapters]
    print(f"serving {', '.join(names)} on {address}/v1", flush=True)
    if settings.dashboard is not None:
        print(f"showing the runs in {settings.dashboard} on {address}/dashboard/", flush=True)
    if opened.sweeps is not None:
        print(f"training the tasks of a queue: {opened.sweeps.directory}", flush=True)
    if opened.tinker is not None:
        print(f"training for tinker clients: TINKER_BASE_URL={address}", flush=True)
        if count := opened.tinker.num_restored:
            print(f"models in training that go on where they were: {count}", flush=True)


def _lora_root(root: Path | None, *, allows: bool) -> Path | None:
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place

    if not allows and root is None:
        return None
    found = None
    if root is None:
        found = "--allow-runtime-lora without --lora-root"
    elif not allows:
        found = "--lora-root without --allow-runtime-lora"
    elif not root.is_dir():
        found = f"{root}, which is no directory"
    if found is not None:
        raise InputError(
            Problem(
                where=Place(option="command line --lora-root"),
                found=found,
                allowed="--allow-runtime-lora --lora-root DIR, together",
                hint="Name the folder that clients may load adapters from.",
            )
        )
    return root
