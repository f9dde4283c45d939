"""Each model has its own answers of the BLAS, shared by all of its products."""

from __future__ import annotations

from pathlib import Path

from cohort.kernels.exact_product import AgreedShapes
from cohort.kernels.packed_linear.frozen_product import agreed_shapes
from cohort.models.weights import load_decoder
from tests.training.small_models import save_llama


def test_the_products_of_a_model_share_their_answers(tmp_path: Path) -> None:
    save_llama(tmp_path, num_layers=2)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    decoder.use_exact_products()
    *linears, head = decoder.products
    shared = {id(getattr(product, "agreed_shapes", None)) for product in linears}
    assert len(shared) == 1
    assert isinstance(getattr(linears[0], "agreed_shapes", None), AgreedShapes)
    assert agreed_shapes(decoder.products) is getattr(linears[0], "agreed_shapes", None)
    # a loss head has rows of its own
    assert isinstance(getattr(head, "agreed_shapes", None), AgreedShapes)
    assert getattr(head, "agreed_shapes", None) is not agreed_shapes(decoder.products)
    decoder.use_exact_products(asks_blas=False)
    assert {getattr(product, "agreed_shapes", "none") for product in decoder.products} == {None}
    assert agreed_shapes(decoder.products) is None
    decoder.use_exact_products(exact=False)
    assert all(getattr(product, "agreed_shapes", "none") is None for product in decoder.products)
    # two models do not
    assert AgreedShapes() != AgreedShapes()
