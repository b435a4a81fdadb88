"""`make test` takes the part that a class of the suite names, if it is long on real services; `make heavy` the rest."""

from __future__ import annotations

import pytest
from contract.parts import is_in_part


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and not is_in_part(item):
        item.add_marker(pytest.mark.heavy)
