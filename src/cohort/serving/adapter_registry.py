"""Adapters by name: what a name stands for now, and the versions that requests still use.

A request holds an :class:`AdapterHandle`, not a name: it is answered although its adapter is unloaded meanwhile. Which
version answers it is decided when it is admitted; it then ends on that version.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cohort.adapters.expert_names import parameters_among
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    PeftAdapter,
    rank_rows_from_peft,
    read_adapter,
)
from cohort.adapters.peft_files.strict_loading import tensor_problems
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import CohortError, InputError, Problem
from cohort.serving.ranks import KeptAdapter

__all__ = [
    "AdapterHandle",
    "AdapterRegistry",
    "AdapterStatus",
    "AdapterVersion",
    "NameTakenError",
    "UnknownAdapterError",
    "load_version",
    "require_finite",
    "require_shared_modules",
]


class NameTakenError(CohortError):
    """Another adapter, or the base model, has this name."""


class UnknownAdapterError(CohortError):
    """There is no adapter of this name."""


@dataclass(eq=False)
class AdapterVersion:
    """One set of weights.

    Attributes:
        key: Name and a number that no other version has; the prefix cache is seeded with it.
        path: Where it can be read again; None where it is in memory only.
        digest: Of the files it was read from.
        kept: In host memory; None where it has been dropped and can be read again.
        is_retired: Replaced or unloaded: it goes with its last request.
    """

    key: tuple[str, int]
    spec: AdapterSpec
    path: Path | None
    digest: bytes
    kept: KeptAdapter | None
    is_retired: bool = False


@dataclass(eq=False)
class AdapterHandle:
    """What requests hold.

    Attributes:
        version: What new requests are answered with.
    """

    name: str
    version: AdapterVersion


@dataclass(frozen=True, kw_only=True)
class AdapterStatus:
    """An adapter as the server lists it.

    Attributes:
        version: Grows by each replacement.
        residence: ``device``, ``host`` or ``disk``.
    """

    name: str
    path: Path | None
    r: int
    version: int
    residence: str


def require_shared_modules(adapter: PeftAdapter, *, where: str) -> None:
    """Refuse an adapter with an embedding or a head of its own, or with adapters on experts.

    Raises:
        InputError: it has one of these.
    """
    if experts := parameters_among(adapter.modules):
        raise InputError(
            Problem(
                where=where,
                found=f"adapters on experts ({next(iter(experts))} and {len(experts) - 1} more)",
                allowed="adapters of linears: every slot of a server would need room for the factors of all experts",
                hint="Export it with `cohort export --to merged` and serve that model; `cohort generate`, `chat` and "
                "`evaluate` take it as it is.",
            )
        )
    if (saved := adapter.spec.saved) is not None:
        raise InputError(
            Problem(
                where=where,
                found=f"modules_to_save {', '.join(saved.names)}",
                allowed="adapters that share the base model's embedding and head, as vLLM asks for as well",
                hint="Export it with `cohort export --to merged` and serve that model.",
            )
        )


def load_version(path: Path, *, layout: AdapterLayout, most_rank: int) -> tuple[AdapterSpec, Tensor, bytes]:
    """Read an adapter directory and return what it is, its rank rows on the host, and a digest of its files.

    Raises:
        InputError: a file is missing or damaged, the adapter is of another kind or base model (each tensor that does
            not fit is named), its rank is above ``most_rank``, or it has weights that are not finite.
    """
    digest = _digest(path)
    try:
        adapter = read_adapter(path)
        require_shared_modules(adapter, where=str(path / CONFIG_FILE))
        problems = [] if adapter.projections is not None else list(tensor_problems(adapter, linears=layout.linears))
        fits = not problems and adapter.spec.num_factor_rows <= most_rank
        rows_rD = rank_rows_from_peft(layout, adapter) if fits else None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        # JSON and tensors that are whole but not an adapter's
        raise InputError(
            Problem(
                where=str(path),
                found=f"files that are no adapter's ({type(error).__name__}: {error})",
                allowed=f"{CONFIG_FILE} and {WEIGHTS_FILE} as PEFT writes them",
                hint="Export the adapter again.",
            )
        ) from error
    if problems:
        raise InputError(problems)
    if rows_rD is None:
        raise InputError(
            Problem(
                where=str(path / CONFIG_FILE),
                # rank_pattern may give a linear more than r
                found=f"rank {adapter.spec.num_factor_rows}",
                allowed=f"a rank of at most {most_rank}",
                hint=f"Start the server with --max-lora-rank {adapter.spec.num_factor_rows} or more.",
            )
        )
    if not adapter.modules:
        raise InputError(
            Problem(
                where=str(path / WEIGHTS_FILE),
                found="no LoRA tensors",
                allowed="lora_A and lora_B of at least one linear",
                hint="Export the adapter again.",
            )
        )
    require_finite(rows_rD, where=str(path / WEIGHTS_FILE))
    return adapter.spec, rows_rD, digest


def require_finite(rows_rD: Tensor, *, where: str) -> None:
    """Refuse weights of an adapter that has diverged.

    Raises:
        InputError: a weight is NaN or infinite.
    """
    if not rows_rD.isfinite().all():
        raise InputError(
            Problem(
                where=where,
                found="weights that are not finite",
                allowed="finite weights",
                hint="Use another trial's adapter: this one has diverged.",
            )
        )


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if (path / name).is_file():
            digest.update(hashlib.sha256((path / name).read_bytes()).digest())
    return digest.digest()


class AdapterRegistry:
    """Names and handles. The caller serialises the calls."""

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        """Refuse the names in ``reserved``, which the base model has."""
        self._reserved = frozenset(reserved)
        self._handles: dict[str, AdapterHandle] = {}
        self._numbers = itertools.count(1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._handles)

    def find(self, name: str) -> AdapterHandle:
        """Return the handle of a name.

        Raises:
            UnknownAdapterError: there is none.
        """
        if name not in self._handles:
            known = ", ".join(self._handles) or "none is loaded"
            raise UnknownAdapterError(f"no adapter is named {name!r}; adapters: {known}")
        return self._handles[name]

    def require_free(self, name: str, *, replaces: bool) -> None:
        """Check that a name can be given to an adapter.

        Raises:
            NameTakenError: it is the base model's, or another adapter's and ``replaces`` is False.
        """
        if name in self._reserved:
            raise NameTakenError(f"{name!r} is the name of the base model; choose another name")
        if name in self._handles and not replaces:
            raise NameTakenError(
                f"an adapter named {name!r} is loaded; unload it, choose another name, or replace it with load_inplace"
            )

    def put(
        self, name: str, *, spec: AdapterSpec, kept: KeptAdapter, path: Path | None, digest: bytes
    ) -> tuple[AdapterHandle, AdapterVersion | None]:
        """Give ``name`` a new version; return its handle and the version that this one replaces."""
        key = (name, next(self._numbers))
        version = AdapterVersion(key=key, spec=spec, path=path, digest=digest, kept=kept)
        handle = self._handles.get(name)
        if handle is None:
            self._handles[name] = AdapterHandle(name, version)
            return self._handles[name], None
        replaced, handle.version = handle.version, version
        replaced.is_retired = True
        return handle, replaced

    def remove(self, name: str) -> AdapterVersion:
        """Take a name away and return the version that it had.

        Raises:
            UnknownAdapterError: there is no such name.
        """
        version = self.find(name).version
        del self._handles[name]
        version.is_retired = True
        return version
