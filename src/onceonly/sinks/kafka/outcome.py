"""Ends transactions and determines their outcome: from the log, never from an error code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from threading import Lock
from time import monotonic, sleep

from onceonly.checkpoint.model import Handle
from onceonly.counts import count
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.kafka.transactions import Described, EndRefused, MarkerState, Transactions
from onceonly.sinks.kafka import staged_rows
from onceonly.sinks.kafka.handle import Part, Partition, Resolution, Tx, with_resolution
from onceonly.sinks.kafka.republish import AT_ONCE, side_by_side
from onceonly.sinks.kafka.staged_rows import End

PATIENCE = 15.0  # seconds, for a coordinator that does not answer
PAUSE = 0.05
SOON = 0.001  # seconds after which a marker usually follows
SETTLED = 5.0  # seconds for a marker to appear after its coordinator reported that it was written


class TxOutcome(Enum):
    COMMITTED = "committed"  # by us, now
    ALREADY_COMMITTED = "already committed"
    LOST = "lost"  # will never be published: aborted, or never written
    DOUBT = "in doubt"  # no evidence is left


COMPLETE = ("CompleteCommit", "CompleteAbort", "Empty")
SHOWN = {MarkerState.COMMITTED: TxOutcome.ALREADY_COMMITTED, MarkerState.ABORTED: TxOutcome.LOST}


def discard_open(known: Transactions, tx: Tx) -> None:
    """Abort it if it is open. A committed transaction stays committed."""
    if tx.pooled:
        known.withdraw(tx.id, *tx.producer)  # another producer may use the id by now
    else:
        known.fence(tx.id)


class TransactionFinisher:
    """Ends the transactions of one handle. Only for handles that are recorded in the state table."""

    def __init__(self, known: Transactions, handle: Handle) -> None:
        self._known, self._handle, self._topics = known, handle, dict(handle["topics"])
        self._cut_logs: frozenset[End] | None = None  # not read yet
        self._lock = Lock()

    def settle_all(self, parts: Sequence[Part]) -> list[TxOutcome]:
        """`settle` for each, in parallel; what they ask first is asked once for all."""
        self._watch(parts)
        found: list[TxOutcome] = []
        for start in range(0, len(parts), AT_ONCE):
            some = parts[start : start + AT_ONCE]
            self._prepare([part.tx for part in some if part.tx])
            found += side_by_side(self.settle, some)
        return found

    def fence_all(self, parts: Sequence[Part]) -> list[TxOutcome]:
        """`fenced` for each, in parallel."""
        self._watch(parts)
        return side_by_side(self.fenced, parts)

    def _watch(self, parts: Sequence[Part]) -> None:
        self._known.watch({part.tx.producer: _ends(part.tx) for part in parts if part.tx}, self._topics)

    def _prepare(self, txs: Sequence[Tx]) -> None:
        """Only saves requests: whatever fails here is asked again, and explained, by `settle`."""
        if len(txs) > 1:
            with suppress(OnceonlyError):
                self._known.prepare({tx.producer: _ends(tx) for tx in txs}, self._topics)
                self._known.prepare_ends(tx.id for tx in txs)

    def settle(self, part: Part) -> TxOutcome:
        """Commit the transaction if it is open. Reads the log before each attempt to end it.

        Raises:
            OutcomeUnknown: the brokers do not answer; call again.
        """
        return _resolved(part.tx, self._settle(part.tx)) if part.tx else TxOutcome.LOST

    def fenced(self, part: Part) -> TxOutcome:
        """Make sure that no process can publish it any more, and only then read its outcome from the log.

        Raises:
            OutcomeUnknown, NotCommitted: the brokers do not answer; call again.
        """
        if part.tx is None:
            return TxOutcome.LOST
        discard_open(self._known, part.tx)
        return _resolved(part.tx, self._await_outcome(part.tx))

    def observe_all(self, parts: Sequence[Part]) -> list[TxOutcome | None]:
        """How each stands; None: it is open. LOST: also if it is open and the log has lost its rows. Ends nothing.

        Raises:
            OutcomeUnknown, NotCommitted: the brokers do not answer, or it has ended and no marker shows how yet.
        """
        self._watch(parts)
        return side_by_side(self._observe, parts)

    def describe(self, part: Part) -> list[str]:
        """What the log shows for each partition. Changes nothing."""
        if part.tx is None:
            return [f"{count(part.rows, 'row')} of {part.spool}: not written to Kafka yet"]
        seen = self._marker_states(part.tx)
        words = "; ".join(f"{topic}-{number}: {state.value}" for (topic, number), state in seen.items())
        recorded = part.tx.resolution.words if part.tx.resolution else ""
        return [f"{count(part.rows, 'row')} in transaction {part.tx.id}: {words}{recorded}"]

    def resolve(self, parts: Sequence[Part], committed: bool) -> list[Part]:
        """Settle them, and record how each transaction ended: as the log shows, or else as a person says.

        After that none of these transactions is in doubt again, whatever happens to its log.
        """
        return [
            with_resolution(part, _resolution(outcome, committed)) if part.tx and not part.tx.resolution else part
            for part, outcome in zip(parts, self.settle_all(parts), strict=True)
        ]

    def _observe(self, part: Part) -> TxOutcome | None:
        """One marker tells of all partitions, as in `_read_outcome`. Without one, only the coordinator can tell.

        A transaction that is not open and has no marker is no lost one: its commit may just be on its way to the log.
        """
        tx, deadline = part.tx, monotonic() + SETTLED
        if tx is None:
            return TxOutcome.LOST
        while True:
            seen = self._marker_states(tx)
            shown = {SHOWN[state] for state in seen.values() if state in SHOWN}
            if shown:
                return _resolved(tx, shown.pop() if len(shown) == 1 else TxOutcome.DOUBT)
            if is_open(self._known.describe([tx.id]).get(tx.id), tx):
                return TxOutcome.LOST if self._has_lost_rows(tx) else None
            if MarkerState.NONE not in seen.values():
                return _resolved(tx, TxOutcome.DOUBT)
            if monotonic() > deadline:
                raise self._hanging(tx, seen)
            sleep(PAUSE)

    def _settle(self, tx: Tx) -> TxOutcome:
        deadline, end_was_sent, recorded = monotonic() + PATIENCE, False, tx
        while True:
            outcome = self._read_outcome(tx)
            if outcome is TxOutcome.DOUBT:
                open_transaction = self._find_open_transaction(tx)
                if open_transaction:
                    tx, outcome = open_transaction, None
            if outcome is TxOutcome.ALREADY_COMMITTED and end_was_sent:
                return TxOutcome.COMMITTED  # our own EndTxn, whose answer was lost
            if outcome:
                return outcome
            if not end_was_sent and self._has_lost_rows(recorded):
                return self._abort_without_rows(tx)
            try:
                end_was_sent = True
                self._known.end(tx.id, tx.producer_id, tx.epoch, commit=True)
                return self._await_outcome(tx)
            except EndRefused:
                discard_open(self._known, tx)  # now it is not open: only the log can show how it ended
                return self._await_outcome(tx)
            except (OutcomeUnknown, NotCommitted):
                if monotonic() > deadline:
                    raise
                sleep(PAUSE)

    def _has_lost_rows(self, tx: Tx) -> bool:
        """Whether a log that has its rows was cut off below them since they were acknowledged."""
        with self._lock:
            if self._cut_logs is None:
                self._cut_logs = staged_rows.find_cut_logs(self._known, self._handle)
            return any((partition, end) in self._cut_logs for partition, (_, end) in tx.partitions.items())

    def _abort_without_rows(self, tx: Tx) -> TxOutcome:
        """Abort an open transaction whose rows are not in the log. Its marker will be above the log's present end."""
        reopened = self._find_open_transaction(tx)
        discard_open(self._known, tx)
        return self._await_outcome(reopened or tx)

    def _read_outcome(self, tx: Tx) -> TxOutcome | None:
        """The outcome according to the log; None while the transaction may be open.

        The marker of one partition is enough: the coordinator writes all of them from a single record of its own. They
        can only differ if a person has written one (`_hanging`). A commit counts once every partition shows it.
        """
        seen = set(self._marker_states(tx).values())
        outcomes = {SHOWN[state] for state in seen & SHOWN.keys()}
        if outcomes == {TxOutcome.ALREADY_COMMITTED} and MarkerState.NONE in seen:
            return self._await_outcome(tx, TxOutcome.ALREADY_COMMITTED)
        if outcomes == {TxOutcome.LOST} and MarkerState.NONE in seen:
            # Aborted by hand in one partition, it may still be open in others, which a stalled process could commit.
            discard_open(self._known, tx)
            return self._await_outcome(tx)
        if outcomes:
            return outcomes.pop() if len(outcomes) == 1 else TxOutcome.DOUBT
        return None if MarkerState.NONE in seen else TxOutcome.DOUBT

    def _await_outcome(self, tx: Tx, committed: TxOutcome = TxOutcome.COMMITTED) -> TxOutcome:
        """The outcome of an ended transaction, after every partition shows it. Markers usually follow at once.

        A commit counts only then. The coordinator writes the markers one by one. Until a partition has its marker, its
        rows are hidden from readers. If the marker is never written, the spool has the only copy of them.

        Raises:
            OutcomeUnknown: a partition does not show the end yet.
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
        """A broker that restarts while a partition has no leader may treat it as deleted and never write its marker.

        Seen with Kafka 4.3: the coordinator then reports "complete", and read_committed readers wait forever.
        """
        without = sorted(partition for partition, state in seen.items() if state is MarkerState.NONE)
        committed = MarkerState.COMMITTED in seen.values()
        now = self._known.describe([tx.id]).get(tx.id)
        is_lost = now is None or now.state in COMPLETE
        ends = self._ends_by_hand(tx, seen) if is_lost else ""
        names = ", ".join(f"{topic}-{number}" for topic, number in without)
        return OutcomeUnknown(
            f"transaction '{tx.id}' has ended, but the log of {names} does not show how.",
            f"Its marker is missing there after {SETTLED:g} s. Its coordinator reports "
            f"{now.state if now else 'no such transaction'}."
            f"{' Other partitions show that it was committed.' if committed else ''}",
            f"Nothing is lost: the rows are in the spool. Publish again: onceonly recover. {ends}".strip(),
        )

    def _ends_by_hand(self, tx: Tx, seen: Mapping[Partition, MarkerState]) -> str:
        """Say what a person can do if the coordinator will never write the missing markers.

        To abort it is safe only if it cannot have been committed in another partition: its rows are then written again
        in all of them.
        """
        without = sorted(partition for partition, state in seen.items() if state is MarkerState.NONE)
        if {MarkerState.COMMITTED, MarkerState.UNKNOWN} & set(seen.values()):
            return (
                "If this persists, the brokers have lost the end of a transaction that is, or may be, committed in "
                "other partitions. Do not abort it by hand: its rows in the partitions without a marker would be lost. "
                "Restore their logs from a replica or a copy, then: onceonly recover."
            )
        starts = self._known.starts(tx.producer_id, without)
        ends = "; ".join(
            f"kafka-transactions --bootstrap-server … abort --topic {topic} --partition {number} --start-offset {start}"
            for (topic, number), start in sorted(starts.items())
        )
        if not ends:
            return ""
        return (
            f"If this persists, the brokers have lost the transaction. End it yourself: {ends}. Then: onceonly "
            "recover, which writes its rows again."
        )

    def _find_open_transaction(self, tx: Tx) -> Tx | None:
        """The transaction, if the log is lost but the coordinator reports it as open. Then no marker was lost.

        From now on, its marker is looked for after the ends that the log had before the coordinator's report.
        """
        topics = {topic for topic, _ in tx.partitions}
        if self._known.topic_ids(topics).keys() != topics:
            return None
        ends = self._known.ends(tx.partitions)
        if not is_open(self._known.describe([tx.id]).get(tx.id), tx):
            return None
        if self._known.topic_ids(topics) != {topic: self._topics[topic] for topic in topics}:
            return None  # asked last: the ends are by name, and an id never comes back
        return replace(tx, partitions={each: (start, ends[each]) for each, (start, _) in tx.partitions.items()})

    def _marker_states(self, tx: Tx) -> dict[Partition, MarkerState]:
        since = _ends(tx)
        ids = {topic: self._topics[topic] for topic, _ in since}
        return self._known.look_at_all(since, tx.producer_id, tx.epoch, ids, alone=not tx.pooled)


def is_open(described: Described | None, tx: Tx) -> bool:
    """Whether that is what its coordinator says of a transaction that has not begun to end."""
    return described is not None and (described.state, described.producer_id, described.epoch) == (
        "Ongoing",
        *tx.producer,
    )


def _resolution(outcome: TxOutcome, committed: bool) -> Resolution:
    if outcome is TxOutcome.DOUBT:
        return Resolution(committed, "person")
    return Resolution(outcome is not TxOutcome.LOST, "log")


def _resolved(tx: Tx, outcome: TxOutcome) -> TxOutcome:
    """What the log shows counts, whatever was recorded. Where it shows nothing, the resolution ends the doubt."""
    if outcome is not TxOutcome.DOUBT or tx.resolution is None:
        return outcome
    return TxOutcome.ALREADY_COMMITTED if tx.resolution.committed else TxOutcome.LOST


def _ends(tx: Tx) -> dict[Partition, int]:
    """By partition: an offset above its rows and below its marker."""
    return {partition: end for partition, (_, end) in tx.partitions.items()}
