"""Services that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from onceonly.dev.services.service import Service


class Group:
    """They are started in their order, and ended the other way round."""

    @property
    def services(self) -> Sequence[Service]:
        raise NotImplementedError

    def up(self) -> None:
        for service in self.services:
            service.launch()
            service.wait()

    def down(self) -> None:
        for service in reversed(self.services):
            service.daemon.stop()

    @contextmanager
    def running(self) -> Iterator[Self]:
        try:
            self.up()
            yield self
        finally:
            self.down()
