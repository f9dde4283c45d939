"""Loads what is served: a base model with adapter directories, or a run with its best adapters."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cohort.adapter_files.base_model import open_base
from cohort.adapter_files.run_model import read_chosen
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, PeftAdapter
from cohort.core.cache_directory import default_cache_directory
from cohort.core.errors import InputError, Problem
from cohort.core.input_values.hub_ids import split_revision
from cohort.core.source_location import Place
from cohort.data.chat import use_chat_template
from cohort.engine.resident.memory_division import MemoryBudget
from cohort.engine.resident.resident_base import ResidentBase
from cohort.machine.machine import Machine
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.source import find_model
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weight_formats import PLAIN
from cohort.models.weights import load_decoder
from cohort.ranks.serving.opening import DividedModel, open_divided
from cohort.runs.directory import QUEUE_DATABASE, RunDirectory
from cohort.service.adapter_folders import adapter_folders
from cohort.service.engine_thread import EngineThread
from cohort.service.opening_checks import length_note, require_context, serving_machine
from cohort.service.served_base import ServedBase
from cohort.service.served_model import ServedModel
from cohort.service.settings import ServedSettings, ServerLimits
from cohort.service.streams.stream_writer import StreamWriter
from cohort.service.sweeps import (
    ServedSweeps,
    base_notes,
    open_shared_base,
    open_sweeps,
    open_turns,
    plan_sweeps,
    require_sweeps,
    settle_threads,
)
from cohort.service.tinker.tinker_service import TinkerService, open_tinker, require_trainable
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.engine import ServingEngine
from cohort.serving.generate import end_of_answer_ids
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, blocks_for
from cohort.serving.pool_size import device_block_count
from cohort.serving.ranks import ServingRanks
from cohort.serving.text.text_decoder import text_decoder

__all__ = ["Opened", "open_served"]

_CPU_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model that is ready, with its engine's thread not yet started.

    Attributes:
        notes: For the user.
        divided: The ranks that serve together; None where one process has the whole model.
        tinker: The Tinker API, where it was asked for.
        base: The model as tasks train on it, where that was asked for.
        sweeps: The tasks of a queue that do.
    """

    model: ServedModel
    thread: EngineThread
    notes: tuple[str, ...]
    divided: DividedModel | None = None
    tinker: TinkerService | None = None
    base: ResidentBase | None = None
    sweeps: ServedSweeps | None = None


def open_served(settings: ServedSettings, limits: ServerLimits) -> Opened:
    """Load the model and its adapters.

    Raises:
        InputError: the model or an adapter cannot be used, or two adapters have one name.
    """
    path = Path(settings.model)
    # a queue is refused there, with the runs of its tasks
    is_run = RunDirectory(path).holds_run() or (path / QUEUE_DATABASE).is_file()
    source = _open_run(settings) if is_run else _open_model(settings)
    folders = adapter_folders(settings.adapters)
    tokenizer = load_tokenizer(source.directory)
    use_chat_template(tokenizer, settings.chat_template or source.chat_template, source.chat_template_kwargs)
    require_trainable(settings)
    require_sweeps(settings)
    machine = serving_machine(settings, source.directory, trained=source.quantization)
    # before a thread computes: each keeps the number that it begins with
    settle_threads(settings, source.directory, on_cpu=machine.device.type == "cpu")
    machine = replace(machine, threads=torch.get_num_threads())
    budget = plan_sweeps(settings, read_config(source.directory), machine)
    if budget is not None:
        settings = replace(settings, cache_bytes=budget.cache_bytes)
    base = _load(settings, source, machine)
    try:
        return _opened(
            settings, limits, source, folders, tokenizer=tokenizer, base=base, machine=machine, budget=budget
        )
    except BaseException:
        if base.divided is not None:
            base.divided.close()
        raise


@dataclass(frozen=True, kw_only=True)
class _Base:
    decoder: Decoder
    divided: DividedModel | None = None


def _load(settings: ServedSettings, source: _Source, machine: Machine) -> _Base:
    if settings.tensor_parallel_size == 1:
        decoder = load_decoder(
            source.directory,
            dtype=machine.dtype,
            device=machine.device,
            weight_format=machine.quantization,
            cache_directory=default_cache_directory(),
        )
        return _Base(decoder=decoder)
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
    budget: MemoryBudget | None,
) -> Opened:
    decoder, divided = base.decoder, base.divided
    require_context(settings, decoder)
    ranks = None if divided is None else divided.ranks
    names, served = settings.names or (split_revision(source.name)[0],), ServedBase(source.directory)
    pool = AdapterPool(
        decoder,
        settings=settings.pool,
        reserved_names=names,
        check=served.check,
        layout=None if divided is None else divided.layout,
        ranks=ranks,
    )
    for name, adapter in source.adapters:
        pool.publish(name, adapter, replaces=False)
    for name, folder in folders:
        pool.load(name, folder)
    engine = _engine(settings, decoder, pool, machine, tokenizer=tokenizer, ranks=ranks)
    model = ServedModel(
        names=names,
        tokenizer=tokenizer,
        vocab_size=decoder.config.vocab_size,
        stop_ids=end_of_answer_ids(tokenizer, decoder.config.eos_token_ids),
        engine=engine,
        pool=pool,
        max_prompts=limits.max_prompts,
        base=served,
    )
    turns = open_turns(settings)
    shared_turns = None if settings.tinker is None and budget is None else turns
    writer = _writer(settings, tokenizer, machine)
    thread = EngineThread(engine, pool, max_waiting=limits.max_waiting, turns=shared_turns, writer=writer)
    tinker = None
    if settings.tinker is not None:
        tinker = open_tinker(settings, limits, model=model, decoder=decoder, thread=thread, turns=turns)
    shared, sweeps = None, None
    if budget is not None:
        shared = open_shared_base(
            settings, budget, decoder=decoder, directory=source.directory, machine=machine, turns=turns
        )
        sweeps = None if settings.queue is None else open_sweeps(settings.queue, shared, pool=pool)
    if divided is not None:
        divided.watch(thread.lose)
    notes = _notes(settings, source, machine, engine)
    if budget is not None and shared is not None:
        notes = (*notes, *base_notes(shared, budget))
    return Opened(model=model, thread=thread, notes=notes, divided=divided, tinker=tinker, base=shared, sweeps=sweeps)


def _writer(settings: ServedSettings, tokenizer: Any, machine: Machine) -> StreamWriter | None:
    is_apart = machine.device.type == "cuda" if settings.writes_apart is None else settings.writes_apart
    if not is_apart:
        return None
    try:
        return StreamWriter(tokenizer)
    except (pickle.PicklingError, AttributeError, TypeError):
        # a tokenizer of own code that no other process can have: this one writes
        return None


def _engine(
    settings: ServedSettings,
    decoder: Decoder,
    pool: AdapterPool,
    machine: Machine,
    *,
    tokenizer: Any,
    ranks: ServingRanks | None,
) -> ServingEngine:
    return ServingEngine(
        decoder,
        adapters=pool,
        num_blocks=_num_blocks(settings, decoder, pool, machine, ranks),
        settings=settings.scheduler,
        decode_text=text_decoder(copy.deepcopy(tokenizer)),
        max_model_len=settings.max_model_len,
        records_graphs=True,
        ranks=ranks,
    )


def _notes(settings: ServedSettings, source: _Source, machine: Machine, engine: ServingEngine) -> tuple[str, ...]:
    notes = list(source.notes)
    if source.quantization not in (None, machine.quantization):
        what = f"the run trained with quantization: {source.quantization}"
        notes.append(f"{what}; the base model is served with {machine.quantization}, and answers differ")
    if (short := length_note(settings, engine)) is not None:
        notes.append(short)
    where, count = str(machine.device), settings.tensor_parallel_size
    if count > 1:
        where = f"{count} GPUs" if machine.device.type == "cuda" else f"{count} processes of the CPU"
    kept = "" if machine.quantization == PLAIN.name else f", weights in {machine.quantization}"
    return (*notes, f"computing on {where} in {machine.dtype}{kept}")


@dataclass(frozen=True, kw_only=True)
class _Source:
    name: str
    directory: Path
    adapters: tuple[tuple[str, PeftAdapter], ...] = ()
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    quantization: str | None = None
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
    try:
        return _Source(name=settings.model, directory=find_model(settings.model))
    except InputError as error:
        allowed = "the directory of a run, a local model directory or a hub id"
        place = Place(text=settings.model)
        raise InputError([replace(each, where=place, allowed=allowed) for each in error.problems]) from None


def _open_run(settings: ServedSettings) -> _Source:
    directory = RunDirectory.open(Path(settings.model))
    base = open_base(directory, model=settings.model_path)
    run = directory.root.resolve().name
    adapters: list[tuple[str, PeftAdapter]] = []
    notes = [] if base.note is None else [base.note]
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
        chat_template_kwargs=base.task.dataset.chat_template_kwargs,
        quantization=base.task.quantization,
        notes=tuple(notes),
    )


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
