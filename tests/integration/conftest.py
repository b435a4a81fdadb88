"""For every test on real services."""

from collections.abc import Iterator

import pytest
from integration.programs.children import end_children


@pytest.fixture(autouse=True)
def no_child_outlives_its_test() -> Iterator[None]:
    yield
    end_children()
