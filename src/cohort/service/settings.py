"""What a server is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from cohort.serving.scheduler import SchedulerSettings

__all__ = ["ServedSettings", "ServerLimits", "ServerSettings"]


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What a client may ask for; beyond it the answer is a status of 4xx.

    Attributes:
        max_waiting: Most requests that are accepted and not finished; a further one gets 429.
        max_body_bytes: Most bytes of a request's body; beyond it 413.
        max_prompts: Most prompts of one completion request, times its ``n``.
        drain_seconds: After SIGTERM, running requests have this long to finish.
    """

    max_waiting: int = 1024
    max_body_bytes: int = 8 << 20
    max_prompts: int = 256
    drain_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_body_bytes", "max_prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The HTTP side of a server.

    Attributes:
        api_keys: Tokens that open ``/v1``; none leaves it open.
        lora_root: Adapters are loaded at run time from below this folder only; None refuses to load any.
        limits: What a client may ask for.
        dashboard: A folder of runs to show at ``/dashboard``; None shows none.
    """

    api_keys: tuple[str, ...] = ()
    lora_root: Path | None = None
    limits: ServerLimits = ServerLimits()
    dashboard: Path | None = None


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
        quantization: How the weights of linears are kept; None: as the run trained, or as the checkpoint is stored.
        tensor_parallel_size: Over how many GPUs the model is divided; on a CPU, over how many processes.
        tinker: Where the Tinker API keeps checkpoints; None does not open it.
        max_trained_models: Most models of the Tinker API on the device; others wait in host memory.
        queue: A queue's folder, whose tasks train on the model between requests; None trains none.
        trains_tasks: Whether tasks that come in another way than by a queue of its own train on the model, too.
        max_sweep_trials: Most trials of tasks on the device; others wait in host memory.
        max_pass_seconds: While requests wait, no pass of training takes longer, where it can be cut.
        writes_apart: Whether a process of their own writes streamed answers; None: where a GPU computes, whose passes
            would wait for them.
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
    quantization: str | None = None
    tensor_parallel_size: int = 1
    tinker: Path | None = None
    max_trained_models: int = 16
    queue: Path | None = None
    trains_tasks: bool = False
    max_sweep_trials: int = 16
    max_pass_seconds: float = 0.25
    writes_apart: bool | None = None
    pool: AdapterPoolSettings = field(default_factory=AdapterPoolSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
