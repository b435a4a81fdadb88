"""Errors as tests expect them: by class and code, so that the words of messages stay free."""

from __future__ import annotations

from typing import TypeVar

import pytest

from onceonly.errors import OnceonlyError

E = TypeVar("E", bound=OnceonlyError)


def raises(error: type[E], code: str) -> pytest.RaisesExc[E]:
    """Expect an error of this class with this code, as `pytest.raises` expects one."""

    def has_code(raised: E) -> bool:
        return raised.code == code

    has_code.__qualname__ = f"code == {code!r}"
    return pytest.raises(error, check=has_code)
