"""A frozen product in which a row's bits do not depend on the rows around it, on a GPU."""

from cohort.kernels.exact_product.agreed_shapes import AgreedShapes, AskedProduct
from cohort.kernels.exact_product.op import ask_ahead, exact_product, has_exact_product, is_settled, load_agreed

__all__ = [
    "AgreedShapes",
    "AskedProduct",
    "ask_ahead",
    "exact_product",
    "has_exact_product",
    "is_settled",
    "load_agreed",
]
