"""`onceonly` as a process whose clock is wrong: `python -m onceonly.dev.chaos.worker SECONDS run FILE …`.

Only the clock of its Python code is: Spark and the broker have the machine's.
"""

from __future__ import annotations

import copyreg
import datetime
import sys
import time
from importlib import import_module
from typing import Any

REAL = datetime.datetime


class _AnyDatetime(type):
    """Instances are the real ones: the class below is only asked for the time."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL)


def shift_clock(seconds: float) -> None:
    """Let this process believe that it is later by so many seconds. To be called before anything imports `datetime`."""
    shift, real_time = datetime.timedelta(seconds=seconds), time.time

    class ShiftedDatetime(REAL, metaclass=_AnyDatetime):
        def __new__(cls, *arguments: Any, **more: Any) -> Any:
            return REAL(*arguments, **more)

        now = classmethod(lambda cls, tz=None: REAL.now(tz) + shift)  # type: ignore[assignment]

    # pickled as what it stands for, so that a process with the right clock can read it
    ShiftedDatetime.__module__, ShiftedDatetime.__qualname__ = REAL.__module__, REAL.__qualname__
    copyreg.pickle(REAL, lambda value: (ShiftedDatetime.fromisoformat, (value.isoformat(),)))
    datetime.datetime = ShiftedDatetime  # type: ignore[misc]
    time.time = lambda: real_time() + seconds


def main() -> None:
    shift = float(sys.argv.pop(1))
    if shift:
        shift_clock(shift)
    import_module("onceonly.cli").main()  # by name: the command line imports this package


if __name__ == "__main__":
    main()
