"""The evidence of a target that shows one decision at a time: the last one, and whose it was."""

from __future__ import annotations

from dataclasses import dataclass

from onceonly.documentation import name_page
from onceonly.errors import Fenced, StateBehind


@dataclass(frozen=True)
class LastDecision:
    """The last decision that a target shows for one `Transaction.app_id`. It changes in one step with the rows.

    Args:
        decision: its number; 0: there was none.
        txn: the name of the transaction that it published; empty: `Sink.fence` has closed it.
    """

    decision: int = 0
    txn: str = ""

    def is_published(self, sink: str, txn: str, decision: int) -> bool:
        """Whether the target shows that `txn` was published by `decision`. If not, it may be published now.

        Raises:
            Fenced: a person gave it up.
            StateBehind: another transaction has that decision, or there was a later one.
        """
        if self.decision < decision:
            return False
        if self == LastDecision(decision, txn):
            return True
        if self == LastDecision(decision):
            raise Fenced(
                f"sink '{sink}': decision {decision} was given up.",
                f"A person gave {txn} up, as its target shows.",
                f"If the state table still waits for it: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …",
                code="sink-given-up",
            )
        raise StateBehind(
            f"sink '{sink}': the state table is behind its target.",
            f"{txn} is to be published by decision {decision}, and the target shows decision {self.decision} of "
            f"{self.txn or 'what was given up'}. The state table was restored from an older copy, or two are in use.",
            "Restore a newer copy, or continue after what is published: onceonly state forward FILE.py:NAME --decision "
            f"{self.decision} --reason … ({name_page('operations', 'backup-and-restore')}). Nothing was changed.",
            code="state-behind",
        )
