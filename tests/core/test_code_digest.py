import re

from cohort.core.code_digest import code_digest


def test_the_same_code_has_the_same_digest() -> None:
    assert re.fullmatch("[0-9a-f]{12}", code_digest())
    assert code_digest() == code_digest()
