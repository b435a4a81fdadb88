"""A target with what is recorded of it, for tests of a sink's `verify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unit.lightdelta import transaction

from onceonly.checkpoint.verification import Judgement
from onceonly.testing.ledger import Ledger, list_codes
from onceonly.testing.targets import Committer, Target

Codes = list[tuple[int | None, str]]  # (epoch, code) of findings
TAKEN_BACK: Codes = [(1, "right"), (2, "taken-out"), (3, "taken-out"), (4, "right")]  # after `take_back`


class VerifiedShelf(Target):
    """A target whose publications a ledger records. A subclass says how it is published to."""

    def __init__(self, folder: Path, receipts: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(self.sink, Committer(self, str(receipts)))

    def traces(self, txn: Any) -> list[Any]:
        return []

    def wrong(self, deep: bool = False) -> Codes:
        return list_codes(self.ledger.verify(deep))

    def right(self, deep: bool = False) -> Codes:
        return list_codes(self.ledger.verify(deep), Judgement.RIGHT)

    def unknown(self, deep: bool = False) -> Codes:
        return list_codes(self.ledger.verify(deep), Judgement.UNKNOWN)

    def handle_of(self, epoch: int) -> Any:
        (handle,) = [one.handle for one in self.ledger.published if one.epoch == epoch]
        return handle

    def take_back(self) -> None:
        """Publish, as epoch 4, a rewind of three epochs to the first."""
        sink: Any = self.sink()
        back = sink.retraction(transaction(4, attempt=0), [self.handle_of(3), self.handle_of(2)], self.handle_of(1))
        self.ledger.publish(4, json.loads(json.dumps(back)))
        for epoch in (2, 3):
            self.ledger.change(epoch, taken_out_by=4)


def parametrize(damages: Sequence[tuple[Callable[..., None], Codes]]) -> dict[str, Any]:
    """Return the arguments of `pytest.mark.parametrize` for damages and what has to be found of each."""
    ids = [damage.__name__ for damage, _ in damages]
    return {"argnames": ("damage", "expected"), "argvalues": damages, "ids": ids}
