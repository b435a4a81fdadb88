"""Errors as tests expect them: by class and code, so that the words of messages stay free."""

from __future__ import annotations

from typing import TypeVar

import pytest

from onceonly.errors import OnceonlyError

E = TypeVar("E", bound=OnceonlyError)


def raises(error: type[E], code: str, match: str | None = None) -> pytest.RaisesExc[E]:
    """Expect an error of this class with this code, as `pytest.raises` expects one.

    Args:
        match: a pattern, for a test of what the message tells: a number, a name or a command in it.
    """

    def has_code(raised: E) -> bool:
        return raised.code == code

    has_code.__qualname__ = f"code == {code!r}"
    return pytest.raises(error, match=match, check=has_code)
