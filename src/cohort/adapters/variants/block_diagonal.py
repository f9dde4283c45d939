"""BD-LoRA: one factor of every adapted linear is block-diagonal, so that tensor parallel ranks need no exchange for it.

With N blocks and total rank r an adapter is N independent LoRA adapters of rank r / N, one for each shard of the base.
Where the base is column-parallel (q, k, v, gate, up) B is block-diagonal: block b of the outputs reads ranks
``b r/N .. (b+1) r/N``. Where it is row-parallel (o, down) A is: those ranks read block b of the inputs. Swapped lists
are an adapter of another kind and as valid.

Source: the paper on block-diagonal LoRA (BD-LoRA), section 3; key names are those of PEFT's BdLoraConfig. We differ:
the scale is PEFT's, of the total rank; the paper scales by the rank of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from cohort.core.setting_fields import Refusal

__all__ = ["COLUMN_PARALLEL", "ROW_PARALLEL", "BlockDiagonal", "BlockFactor", "num_parameters", "rank_of_equal_size"]

ROW_PARALLEL = ("o_proj", "down_proj")
"""Linears whose inputs tensor parallel ranks divide: their A is block-diagonal."""
COLUMN_PARALLEL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Linears whose outputs tensor parallel ranks divide: their B is block-diagonal."""

Linears = Mapping[str, tuple[int, int]]
"""``(in_features, out_features)`` by full module path."""


class BlockFactor(Enum):
    """Which factor of a linear is block-diagonal."""

    A = "A"
    B = "B"


@dataclass(frozen=True, kw_only=True)
class BlockDiagonal:
    """The block structure of an adapter. Plain LoRA has none, and no structure of one block.

    Attributes:
        nblocks: Blocks N of each block-diagonal factor, at least 2.
        target_modules_bd_a: Linears whose A is block-diagonal; as in PEFT, all whose own name contains an entry.
        target_modules_bd_b: The same for B.
        match_strict: Whether every adapted linear must be of one kind; else the others have two dense factors.
    """

    nblocks: int
    target_modules_bd_a: tuple[str, ...] = ROW_PARALLEL
    target_modules_bd_b: tuple[str, ...] = COLUMN_PARALLEL
    match_strict: bool = True

    def __post_init__(self) -> None:
        if self.nblocks < 2:
            raise ValueError(f"nblocks must be at least 2, got {self.nblocks}; an adapter of one block is plain LoRA")

    def factor_of(self, module: str) -> BlockFactor | None:
        """Return which factor of a linear, by its full path, is block-diagonal; None if neither."""
        name = module.rsplit(".", 1)[-1]
        if any(entry in name for entry in self.target_modules_bd_a):
            return BlockFactor.A
        return BlockFactor.B if any(entry in name for entry in self.target_modules_bd_b) else None

    def width_of(self, module: str, shape: tuple[int, int]) -> int:
        """Return how many entries of one rank row of a linear may differ from zero."""
        in_features, out_features = shape
        factor = self.factor_of(module)
        if factor is BlockFactor.A:
            return in_features // self.nblocks + out_features
        return in_features + (out_features // self.nblocks if factor is BlockFactor.B else out_features)

    def refusals(self, linears: Linears, *, known: Linears) -> Iterator[Refusal]:
        """Yield what keeps ``linears``, those adapted among all ``known``, from this structure; none where it fits.

        Places are relative to the section ``use_bdlora``.
        """
        names = sorted({path.rsplit(".", 1)[-1] for path in known})
        lists = {"target_modules_bd_a": self.target_modules_bd_a, "target_modules_bd_b": self.target_modules_bd_b}
        for key, entries in lists.items():
            for entry in entries:
                if not any(entry in name for name in names):
                    hint = "Correct the name, or remove it."
                    yield Refusal(found=repr(entry), allowed=f"names among {', '.join(names)}", hint=hint, at=(key,))
        unnamed = []
        for name in sorted({path.rsplit(".", 1)[-1] for path in linears}):
            both = [key for key, entries in lists.items() if any(entry in name for entry in entries)]
            if len(both) == 2:
                found, hint = f"{name} in both lists", "Take it out of one of the two."
                yield Refusal(found=found, allowed="each linear in one list", hint=hint, at=("target_modules_bd_b",))
            elif not both:
                unnamed.append(name)
        if unnamed and self.match_strict:
            are, them = ("is", "it") if len(unnamed) == 1 else ("are", "them")
            yield Refusal(
                found=f"{', '.join(unnamed)}, which {are} adapted, in neither target_modules_bd_a nor "
                "target_modules_bd_b",
                allowed="every adapted linear in one of the lists, or match_strict: false",
                hint=f"Add {them} to a list, or write match_strict: false to give {them} two dense factors.",
                at=("match_strict",),
            )
        yield from self.width_refusals(linears)

    def width_refusals(self, linears: Linears) -> Iterator[Refusal]:
        """Yield which widths the blocks do not divide."""
        odd: dict[tuple[str, str], int] = {}
        for path, (in_features, out_features) in linears.items():
            factor = self.factor_of(path)
            width = {BlockFactor.A: in_features, BlockFactor.B: out_features, None: 0}[factor]
            if width % self.nblocks:
                kind = "inputs" if factor is BlockFactor.A else "outputs"
                odd.setdefault((path.rsplit(".", 1)[-1], kind), width)
        if odd:
            shown = ", ".join(f"{width} {kind} of {name}" for (name, kind), width in odd.items())
            yield Refusal(
                found=f"{self.nblocks}, which does not divide the {shown}",
                allowed="a number of blocks that divides the width of every block-diagonal factor",
                hint="Write another nblocks, or leave these linears out of target_modules.",
                at=("nblocks",),
            )

    def rank_refusal(self, r: int) -> Refusal | None:
        """Return why an adapter of total rank ``r`` cannot have these blocks; None where it can."""
        if r % self.nblocks == 0:
            return None
        fitting = max(1, round(r / self.nblocks)) * self.nblocks
        return Refusal(
            found=f"{self.nblocks}, which does not divide r {r}",
            allowed="a number of blocks that divides r, since each block has r / nblocks ranks",
            hint=f"Write r: {fitting}, or another nblocks.",
            at=("nblocks",),
        )


def num_parameters(linears: Linears, *, r: int, blocks: BlockDiagonal | None) -> int:
    """Return the trainable parameters of an adapter of total rank ``r``: entries outside its blocks do not count."""
    if blocks is None:
        return r * sum(map(sum, linears.values()))
    return r * sum(blocks.width_of(path, shape) for path, shape in linears.items())


def rank_of_equal_size(linears: Linears, *, r: int, blocks: BlockDiagonal) -> int:
    """Return the total rank, a multiple of nblocks, whose BD-LoRA has about as many parameters as LoRA of rank ``r``.

    It is ``r sum(in + out) / sum(widths of a rank row)`` over the adapted linears, rounded. The paper's
    ``r (dH + dI) / (dH + dI / N)`` is the case of an MLP of two linears.
    """
    exact = num_parameters(linears, r=r, blocks=None) / num_parameters(linears, r=1, blocks=blocks)
    return max(1, round(exact / blocks.nblocks)) * blocks.nblocks
