"""What became of a transaction, and its end: decided by the log, never by an error code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from time import monotonic, sleep

from onceonly.checkpoint.model import Handle
from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.kafka.transactions import EndRefused, MarkerState, Transactions
from onceonly.sinks.kafka.handle import Part, Partition, Tx

PATIENCE = 15.0  # seconds, for a coordinator that does not answer
PAUSE = 0.05
SOON = 0.001  # seconds in which a marker follows as a rule
SETTLED = 5.0  # seconds within which a marker shows once its coordinator has said that it is written


class TxOutcome(Enum):
    COMMITTED = "committed"  # by us, now
    ALREADY_COMMITTED = "was committed"
    LOST = "lost"  # surely never to be published: aborted, or never written
    DOUBT = "in doubt"  # nothing shows it any more


COMPLETE = ("CompleteCommit", "CompleteAbort", "Empty")
SHOWN = {MarkerState.COMMITTED: TxOutcome.ALREADY_COMMITTED, MarkerState.ABORTED: TxOutcome.LOST}


def discard_open(known: Transactions, tx: Tx) -> None:
    """Afterwards it is not open. What was committed before stays so."""
    if tx.pooled:
        known.withdraw(tx.id, *tx.producer)  # another producer may have the id by now
    else:
        known.fence(tx.id)


class TransactionFinisher:
    """Brings the transactions of one handle to their end. Only for handles that the state table holds."""

    def __init__(self, known: Transactions, handle: Handle) -> None:
        self._known, self._topics = known, dict(handle["topics"])

    def settle(self, part: Part) -> TxOutcome:
        """Commit what is open. Never sends the same end twice without looking in between.

        Raises:
            OutcomeUnknown: the brokers do not answer; call again.
        """
        tx, deadline, asked = part.tx, monotonic() + PATIENCE, False
        if tx is None:
            return TxOutcome.LOST
        while True:
            outcome = self._shown(tx)
            if outcome is TxOutcome.DOUBT and (still_open := self._still_open(tx)):
                tx, outcome = still_open, None
            if outcome:
                return TxOutcome.COMMITTED if asked and outcome is TxOutcome.ALREADY_COMMITTED else outcome
            try:
                asked = True
                self._known.end(tx.id, tx.producer_id, tx.epoch, commit=True)
                return self._seen(tx)
            except EndRefused:
                discard_open(self._known, tx)  # now it cannot be open: the log shows its end, or nothing does
                return self._seen(tx)
            except (OutcomeUnknown, NotCommitted):
                if monotonic() > deadline:
                    raise
                sleep(PAUSE)

    def fenced(self, part: Part) -> TxOutcome:
        """What became of it, once no process can publish it any more: only then the log is looked at.

        Raises:
            OutcomeUnknown, NotCommitted: the brokers do not answer; call again.
        """
        tx = part.tx
        if tx is None:
            return TxOutcome.LOST
        if tx.resolution is not None:
            return self._shown(tx) or TxOutcome.DOUBT
        discard_open(self._known, tx)
        return self._seen(tx)

    def describe(self, part: Part) -> list[str]:
        """What the log shows, partition by partition; changes nothing."""
        if part.tx is None:
            return [f"{part.rows} rows of {part.spool}: not written to Kafka yet"]
        seen = self._marker_states(part.tx)
        words = "; ".join(f"{topic}-{number}: {state.value}" for (topic, number), state in seen.items())
        return [f"{part.rows} rows in transaction {part.tx.id}: {words}"]

    def _shown(self, tx: Tx) -> TxOutcome | None:
        """The outcome as the log (or a person) shows it; None while the transaction may be open.

        One partition's marker decides for all: one coordinator writes them from one record of its own. Only a person
        can have made them differ (`_hanging`). What is decided is published once every partition shows it.
        """
        if tx.resolution is not None:
            return TxOutcome.ALREADY_COMMITTED if tx.resolution else TxOutcome.LOST
        seen = set(self._marker_states(tx).values())
        outcomes = {SHOWN[state] for state in seen & SHOWN.keys()}
        if outcomes == {TxOutcome.ALREADY_COMMITTED} and MarkerState.NONE in seen:
            return self._seen(tx, TxOutcome.ALREADY_COMMITTED)
        if outcomes == {TxOutcome.LOST} and MarkerState.NONE in seen:
            # Aborted by hand in one partition, it may be open in others: a committer that hangs could commit those.
            discard_open(self._known, tx)
            return self._seen(tx)
        if outcomes:
            return outcomes.pop() if len(outcomes) == 1 else TxOutcome.DOUBT
        return None if MarkerState.NONE in seen else TxOutcome.DOUBT

    def _seen(self, tx: Tx, committed: TxOutcome = TxOutcome.COMMITTED) -> TxOutcome:
        """The outcome of what has ended, once it shows in every partition: markers follow at once.

        A commit counts only then. Its coordinator writes the markers one by one, and until a partition has its own the
        rows there are hidden from readers; should that marker never come, the spool is all there is of them.

        Raises:
            OutcomeUnknown: a partition does not show its end yet.
        """
        deadline = monotonic() + SETTLED
        while True:
            seen = self._marker_states(tx)
            shown = {SHOWN[state] for state in seen.values() if state in SHOWN}
            if len(shown) > 1 or MarkerState.NONE not in seen.values() or monotonic() > deadline:
                break
            sleep(SOON)
        if shown == {TxOutcome.LOST}:
            return TxOutcome.LOST
        if len(shown) < 2 and MarkerState.NONE in seen.values():
            raise self._hanging(tx, seen)
        return committed if shown == {TxOutcome.ALREADY_COMMITTED} else TxOutcome.DOUBT

    def _hanging(self, tx: Tx, seen: Mapping[Partition, MarkerState]) -> OutcomeUnknown:
        """A broker that restarts while a partition has no leader may take it for deleted, and never write its marker.

        Seen with Kafka 4.3: its coordinator then reports "complete", and read_committed readers wait forever.
        """
        without = sorted(partition for partition, state in seen.items() if state is MarkerState.NONE)
        committed = MarkerState.COMMITTED in seen.values()
        now = self._known.describe([tx.id]).get(tx.id)
        ends = self._ends_by_hand(tx, without) if now is None or now.state in COMPLETE else ""
        names = ", ".join(f"{topic}-{number}" for topic, number in without)
        return OutcomeUnknown(
            f"transaction '{tx.id}' has ended, and how does not show in the log of {names}.",
            f"Its marker is missing there after {SETTLED:g} s; its coordinator says {now.state if now else 'nothing'}."
            f"{' Other partitions show that it was committed.' if committed else ''}",
            f"Nothing is lost: the rows are spooled. Publish again: onceonly recover. {ends}".strip(),
        )

    def _ends_by_hand(self, tx: Tx, without: Sequence[Partition]) -> str:
        """What a person can do where its coordinator will not write the missing markers any more."""
        starts = self._known.starts(tx.producer_id, without)
        ends = "; ".join(
            f"kafka-transactions --bootstrap-server … abort --topic {topic} --partition {number} --start-offset {start}"
            for (topic, number), start in sorted(starts.items())
        )
        then = "its rows are written again, or, where other partitions have theirs, you are asked what is to be done"
        return f"If it stays so, the brokers have lost it. End it yourself, and {then}: {ends}" if ends else ""

    def _still_open(self, tx: Tx) -> Tx | None:
        """Where nothing is left of the log, but its coordinator says that it is open: no marker is hidden by that.

        As it is to be looked for from now on: behind the ends of the log as they were before the coordinator said so.
        """
        topics = {topic for topic, _ in tx.partitions}
        if self._known.topic_ids(topics) != {topic: self._topics[topic] for topic in topics}:
            return None
        ends = self._known.ends(tx.partitions)
        now = self._known.describe([tx.id]).get(tx.id)
        if now is None or (now.state, now.producer_id, now.epoch) != ("Ongoing", tx.producer_id, tx.epoch):
            return None
        return replace(tx, partitions={each: (start, ends[each]) for each, (start, _) in tx.partitions.items()})

    def _marker_states(self, tx: Tx) -> dict[Partition, MarkerState]:
        since = {partition: end for partition, (_, end) in tx.partitions.items()}
        ids = {topic: self._topics[topic] for topic, _ in since}
        return self._known.look_at_all(since, tx.producer_id, tx.epoch, ids, alone=not tx.pooled)
