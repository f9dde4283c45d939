"""Loads what is served: a base model with adapter directories, or a run with its best adapters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cohort.adapter_files.base_model import open_base
from cohort.adapter_files.run_model import read_chosen
from cohort.adapters.peft_format import CONFIG_FILE, PeftAdapter
from cohort.core.errors import InputError, Problem
from cohort.core.place import Place
from cohort.data.chat import use_chat_template
from cohort.machine.machine import Machine, choose_machine
from cohort.models.decoder import Decoder
from cohort.models.source import find_model
from cohort.models.weight_formats import PLAIN
from cohort.models.weights import load_decoder, load_tokenizer
from cohort.parallel.serving.opening import DividedModel, open_divided
from cohort.prepare.fingerprints import model_fingerprint
from cohort.runs.directory import RunDirectory
from cohort.service.adapter_folders import adapter_folders, recorded_base_hash
from cohort.service.engine_thread import EngineThread
from cohort.service.served_model import ServedModel
from cohort.service.settings import ServerLimits
from cohort.serving.adapter_pool import AdapterPool, AdapterPoolSettings
from cohort.serving.engine import ServingEngine
from cohort.serving.generate import end_of_answer_ids
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, blocks_for
from cohort.serving.pool_size import device_block_count
from cohort.serving.ranks import ServingRanks
from cohort.serving.scheduler import SchedulerSettings

__all__ = ["Opened", "ServedSettings", "open_served"]

_CPU_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ServedSettings:
    """What to serve and with how much memory.

    Attributes:
        model: A base model (hub id or directory), or a run's directory.
        adapters: Adapter directories, folders of them, or ``NAME=DIRECTORY``.
        trials: Trials of the run; none: its best adapter.
        names: Names of the base model; none: ``model`` as it was typed.
        model_path: Where the run's base model is now.
        chat_template: A template by name; None: the tokenizer's, or the run's.
        max_model_len: Most tokens of a sequence; None: the model's context.
        cache_bytes: Memory for keys and values; None: 1 GiB on a CPU, nine tenths of what is free on a GPU.
        gpus: 0 serves on the CPU.
        tensor_parallel_size: Over how many GPUs the model is divided; on a CPU, over how many processes.
    """

    model: str
    adapters: tuple[str, ...] = ()
    trials: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    model_path: str | None = None
    chat_template: str | None = None
    max_model_len: int | None = None
    cache_bytes: int | None = None
    gpus: str | int = "auto"
    tensor_parallel_size: int = 1
    pool: AdapterPoolSettings = field(default_factory=AdapterPoolSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model that is ready, with its engine's thread not yet started.

    Attributes:
        notes: For the user.
        divided: The ranks that serve together; None where one process has the whole model.
    """

    model: ServedModel
    thread: EngineThread
    notes: tuple[str, ...]
    divided: DividedModel | None = None


def open_served(settings: ServedSettings, limits: ServerLimits) -> Opened:
    """Load the model and its adapters.

    Raises:
        InputError: the model or an adapter cannot be used, or two adapters have one name.
    """
    source = _open_run(settings) if RunDirectory(Path(settings.model)).holds_run() else _open_model(settings)
    folders = adapter_folders(settings.adapters)
    tokenizer = load_tokenizer(source.directory)
    use_chat_template(tokenizer, settings.chat_template or source.chat_template)
    machine = _machine(settings)
    base = _load(settings, source, machine)
    try:
        return _opened(settings, limits, source, folders, tokenizer=tokenizer, base=base, machine=machine)
    except BaseException:
        if base.divided is not None:
            base.divided.close()
        raise


@dataclass(frozen=True, kw_only=True)
class _Base:
    decoder: Decoder
    divided: DividedModel | None = None


def _machine(settings: ServedSettings) -> Machine:
    size = settings.tensor_parallel_size
    if size == 1 or settings.gpus == 0 or not torch.cuda.is_available():
        return choose_machine(settings.gpus, where=Place(option="command line --gpus"))
    return choose_machine(size, where=Place(option="command line --tensor-parallel-size"))


def _load(settings: ServedSettings, source: _Source, machine: Machine) -> _Base:
    if settings.tensor_parallel_size == 1:
        return _Base(decoder=load_decoder(source.directory, dtype=machine.dtype, device=machine.device))
    divided = open_divided(
        source.directory,
        size=settings.tensor_parallel_size,
        device=machine.device,
        dtype=machine.dtype,
        num_slots=settings.pool.max_loras,
        num_rank_rows=settings.pool.num_rank_rows,
    )
    return _Base(decoder=divided.decoder, divided=divided)


def _opened(
    settings: ServedSettings,
    limits: ServerLimits,
    source: _Source,
    folders: Sequence[tuple[str, Path]],
    *,
    tokenizer: Any,
    base: _Base,
    machine: Machine,
) -> Opened:
    decoder, divided = base.decoder, base.divided
    ranks = None if divided is None else divided.ranks
    names = settings.names or (source.name,)
    pool = AdapterPool(
        decoder,
        settings=settings.pool,
        reserved_names=names,
        check=_base_check(source.directory),
        layout=None if divided is None else divided.layout,
        ranks=ranks,
    )
    for name, adapter in source.adapters:
        pool.publish(name, adapter, replaces=False)
    for name, folder in folders:
        pool.load(name, folder)
    decoding = copy.deepcopy(tokenizer)
    engine = ServingEngine(
        decoder,
        adapters=pool,
        num_blocks=_num_blocks(settings, decoder, pool, machine, ranks),
        settings=settings.scheduler,
        decode_text=lambda tokens: str(decoding.decode(list(tokens), skip_special_tokens=True)),
        max_model_len=settings.max_model_len,
        records_graphs=True,
        ranks=ranks,
    )
    model = ServedModel(
        names=names,
        tokenizer=tokenizer,
        vocab_size=decoder.config.vocab_size,
        stop_ids=end_of_answer_ids(tokenizer, decoder.config.eos_token_ids),
        engine=engine,
        pool=pool,
        max_prompts=limits.max_prompts,
    )
    thread = EngineThread(engine, pool, max_waiting=limits.max_waiting)
    where = str(machine.device)
    if divided is not None:
        count = settings.tensor_parallel_size
        where = f"{count} GPUs" if machine.device.type == "cuda" else f"{count} processes of the CPU"
        divided.watch(thread.lose)
    notes = [*source.notes, f"computing on {where} in {str(decoder.dtype).removeprefix('torch.')}"]
    return Opened(model=model, thread=thread, notes=tuple(notes), divided=divided)


@dataclass(frozen=True, kw_only=True)
class _Source:
    name: str
    directory: Path
    adapters: tuple[tuple[str, PeftAdapter], ...] = ()
    chat_template: str | None = None
    notes: tuple[str, ...] = ()


def _open_model(settings: ServedSettings) -> _Source:
    given = Path(settings.model)
    if (given / CONFIG_FILE).is_file():
        raise InputError(
            Problem(
                where=settings.model,
                found="an adapter",
                allowed="a base model, or the directory of a run",
                hint=f"Name its base model and add --adapters {settings.model}.",
            )
        )
    if settings.trials:
        raise InputError(
            Problem(
                where=Place(option="command line --trial"),
                found=f"--trial with {settings.model}, which is no run",
                allowed="--trial with the directory of a run",
                hint="Leave it out, and name adapters with --adapters.",
            )
        )
    return _Source(name=settings.model, directory=find_model(settings.model))


def _open_run(settings: ServedSettings) -> _Source:
    directory = RunDirectory.open(Path(settings.model))
    base = open_base(directory, model=settings.model_path)
    run = directory.root.resolve().name
    adapters: list[tuple[str, PeftAdapter]] = []
    notes = [] if base.note is None else [base.note]
    if (kept := base.task.quantization) != PLAIN.name:
        notes.append(f"the run trained with quantization: {kept}; the base model is served in its plain weights")
    for trial_id in settings.trials or (None,):
        adapter, so_far = read_chosen(directory, trial_id=trial_id, base=base)
        adapters.append((run if trial_id is None else f"{run}-trial-{trial_id}", adapter))
        if so_far is not None:
            notes.append(so_far.note)
    return _Source(
        name=base.name,
        directory=base.directory,
        adapters=tuple(adapters),
        chat_template=base.task.dataset.chat_template,
        notes=tuple(notes),
    )


def _base_check(directory: Path) -> Callable[[Path], None]:
    """Return a check that an adapter was trained on the weights in ``directory``, where its card says on which."""
    own: list[str] = []

    def check(adapter: Path) -> None:
        recorded = recorded_base_hash(adapter)
        if recorded is None:
            return
        if not own:
            own.append(model_fingerprint(directory))
        if recorded != own[0]:
            raise InputError(
                Problem(
                    where=str(adapter),
                    found=f"an adapter of another base model (SHA-256 {recorded[:12]})",
                    allowed=f"adapters of the served one: SHA-256 {own[0][:12]} over config.json and *.safetensors",
                    hint="Serve the model that the adapter was trained on: on any other its answers are wrong.",
                )
            )

    return check


def _num_blocks(
    settings: ServedSettings, decoder: Decoder, pool: AdapterPool, machine: Machine, ranks: ServingRanks | None
) -> int:
    longest = decoder.config.max_position_embeddings
    longest = longest if settings.max_model_len is None else min(longest, settings.max_model_len)
    block_bytes = KvBlocks.block_bytes(decoder.config, dtype=decoder.dtype)
    if settings.cache_bytes is None and machine.device.type == "cuda":
        found = device_block_count(decoder, pool, most_rows=settings.scheduler.max_num_batched_tokens, ranks=ranks)
    else:
        found = (_CPU_CACHE_BYTES if settings.cache_bytes is None else settings.cache_bytes) // block_bytes
    if found < 1:
        raise InputError(
            Problem(
                where=Place(option="command line --kv-cache-gib"),
                found=f"{(settings.cache_bytes or 0) / 2**30:.3g} GiB for keys and values",
                allowed=f"at least {block_bytes / 2**30:.3g} GiB, which hold {BLOCK_ROWS} tokens",
                hint="Give more memory, or serve a smaller model.",
            )
        )
    # more than all sequences at their longest is never used
    return min(found, settings.scheduler.max_num_seqs * blocks_for(longest))
