"""Frozen products at several row counts: do the first rows keep their bits, and which forms agree?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.numerics.places import Place, Row, changed, seconds
from cohort.kernels.exact_product.triton import ProductTile, portable_product
from cohort.kernels.packed_linear.hopper.launch import hopper_product, is_hopper

__all__ = ["product_rows"]

# (input width, output width): of Llama-3.2-1B and Llama-3.1-8B
SHAPES = {
    "1b qkv": (2048, 3072),
    "1b down": (8192, 2048),
    "8b o": (4096, 4096),
    "8b qkv": (4096, 6144),
    "8b gate+up": (4096, 28672),
    "8b down": (14336, 4096),
}
TINY_SHAPES = {"tiny": (48, 96)}
ROWS = (32, 128, 256, 512, 1024, 2048, 8192)
TINY_ROWS = (32, 64, 128)
# rows whose bits are compared: the same at the beginning of every stream
BLOCK = 32


Product = Callable[[Tensor, Tensor, Tensor], None]


def _products(place: Place, *, forward: bool) -> dict[str, Product]:
    """Forms of ``y = x w^T`` (``forward``, w [N, K]) or ``y = x w``: each takes x, w and y to write."""

    def oriented(w: Tensor) -> Tensor:
        return w if forward else w.T

    def blas(x: Tensor, w: Tensor, y: Tensor) -> None:
        torch.mm(x, oriented(w).T, out=y)

    def blas_adding(x: Tensor, w: Tensor, y: Tensor) -> None:
        y.fill_(0.5)
        y.addmm_(x, oriented(w).T)

    def portable(tile: ProductTile, *, add: bool = False) -> Product:
        def product(x: Tensor, w: Tensor, y: Tensor) -> None:
            if add:
                y.fill_(0.5)
            portable_product(x, oriented(w), y, tile=tile, add=add)

        return product

    if place.tiny:
        small = ProductTile(rows=16, columns=16)
        return {
            "blas": blas,
            "blas adding": blas_adding,
            "triton 16x16": portable(small),
            "triton 32x32": portable(ProductTile(rows=32, columns=32)),
            "triton 16x16 adding": portable(small, add=True),
        }
    found: dict[str, Product] = {"blas": blas, "blas adding": blas_adding}

    def own(columns: int) -> Product:
        def product(x: Tensor, w: Tensor, y: Tensor) -> None:
            hopper_product(x, w, y, parts=(), s_PTC=None, rank_pass=None, forward=forward, columns=columns)

        return product

    if is_hopper(torch.device(place.device)):
        found |= {f"hopper {columns}": own(columns) for columns in (256, 128, 64)}
    tile = ProductTile(rows=128, columns=128, warps=8, stages=3)
    found |= {
        "triton 128x128": portable(tile),
        "triton 128x128 adding": portable(tile, add=True),
        "triton 64x128": portable(ProductTile(rows=64, columns=128)),
        "triton 64x64": portable(ProductTile(rows=64, columns=64)),
        "triton 32x64": portable(ProductTile(rows=32, columns=64)),
    }
    return found


def product_rows(place: Place) -> Iterator[Row]:
    """Frozen products at several row counts: do the first rows keep their bits, and which forms agree?"""
    torch.cuda.empty_cache() if torch.cuda.is_available() else None
    shapes, counts = (TINY_SHAPES, TINY_ROWS) if place.tiny else (SHAPES, ROWS)
    for name, (num_in, num_out) in shapes.items():
        w = place.draw(num_out, num_in, seed=1, std=num_in**-0.5)
        for forward in (True, False):
            width, out = (num_in, num_out) if forward else (num_out, num_in)
            x = place.draw(counts[-1], width, seed=2)
            forms = _products(place, forward=forward)
            canon: dict[bool, Tensor] = {}
            for form, product in forms.items():
                adding = form.endswith("adding")
                row: Row = {"operation": "product", "form": form, "shape": name, "forward": forward}
                try:
                    yield row | _one_product(place, product, x, w, out, counts, canon, adding=adding)
                except Exception as error:  # a form that does not compile here is a finding
                    yield row | {"error": f"{type(error).__name__}: {error}"[:300]}


def _one_product(
    place: Place,
    product: Product,
    x: Tensor,
    w: Tensor,
    out: int,
    counts: Sequence[int],
    canon: dict[bool, Tensor],
    *,
    adding: bool,
) -> Row:
    found: dict[int, Tensor] = {}
    times: dict[str, float] = {}
    for count in counts:
        y = torch.empty(count, out, device=place.device, dtype=place.dtype)
        product(x[:count], w, y)
        found[count] = y[:BLOCK].clone()
        if not adding:
            times[f"us_{count}"] = round(seconds(lambda y=y, count=count: product(x[:count], w, y)) * 1e6, 1)
    last = found[counts[-1]]
    moved = torch.cat([x[BLOCK + 5 :], x[: BLOCK + 5]])
    y = torch.empty(counts[-1], out, device=place.device, dtype=place.dtype)
    product(moved, w, y)
    start = counts[-1] - BLOCK - 5
    result: Row = {
        "changed_by_rows": {str(count): changed(block, last) for count, block in found.items()},
        "changed_by_place": changed(y[start : start + BLOCK], last),
    }
    # compared with the first form that changes by nothing, if there is one
    if adding not in canon and not any(result["changed_by_rows"].values()):
        canon[adding] = last
    if adding in canon:
        result["differs_from_first_invariant"] = {
            str(count): changed(block, canon[adding]) for count, block in found.items()
        }
    return result | times
