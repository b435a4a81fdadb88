"""Ends transactions and determines their outcome: from the log, never from an error code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

from onceonly.counts import count
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.kafka.transactions import Described, EndRefused, MarkerState, Transactions
from onceonly.sinks.kafka import open_transactions
from onceonly.sinks.kafka.handle import LogEnd, Part, Partition, Resolution, Tx, with_resolution
from onceonly.sinks.kafka.open_transactions import LogPosition
from onceonly.waits import wait_for

MAX_PARALLEL_TRANSACTIONS = 8  # that are written or ended at the same time
PATIENCE = 15.0  # seconds, for a coordinator that does not answer
PAUSE = 0.05
SOON = 0.001  # seconds after which a marker usually follows
SETTLED = 5.0  # seconds for a marker to appear after its coordinator reported that it was written
T = TypeVar("T")


class TxOutcome(Enum):
    COMMITTED = "committed"  # by us, now
    ALREADY_COMMITTED = "already committed"
    LOST = "lost"  # will never be published: aborted, or never written
    DOUBT = "in doubt"  # no evidence is left


COMPLETE_STATES = ("CompleteCommit", "CompleteAbort", "Empty")
PUBLISHED = (TxOutcome.COMMITTED, TxOutcome.ALREADY_COMMITTED)
OUTCOMES = {MarkerState.COMMITTED: TxOutcome.ALREADY_COMMITTED, MarkerState.ABORTED: TxOutcome.LOST}


def discard_open(transactions: Transactions, tx: Tx) -> None:
    """Abort a transaction if it is open. A committed transaction stays committed."""
    if tx.has_pooled_id:
        transactions.withdraw(tx.id, *tx.producer)  # another producer may use the id by now
    else:
        transactions.fence(tx.id)


class TransactionFinisher:
    """Ends the transactions of one handle. Only for handles that are recorded in the state table.

    Args:
        topic_ids: of the topics for which the rows were staged, by name.
        log_ends: behind the rows of the transactions.
    """

    def __init__(
        self, transactions: Transactions, topic_ids: Mapping[str, str], log_ends: Sequence[LogEnd] = ()
    ) -> None:
        self._transactions, self._topics, self._log_ends = transactions, dict(topic_ids), log_ends
        self._cut_logs: frozenset[LogPosition] | None = None  # not read yet
        self._lock = Lock()

    def settle_all(self, parts: Sequence[Part]) -> list[TxOutcome]:
        """Settle the parts in parallel; what they ask first is asked once for all. See `settle`."""
        self._watch(parts)
        outcomes: list[TxOutcome] = []
        for start in range(0, len(parts), MAX_PARALLEL_TRANSACTIONS):
            group = parts[start : start + MAX_PARALLEL_TRANSACTIONS]
            self._prepare([part.tx for part in group if part.tx])
            outcomes += side_by_side(self.settle, group)
        return outcomes

    def fence_all(self, parts: Sequence[Part]) -> list[TxOutcome]:
        """Fence the parts in parallel. See `fence`."""
        self._watch(parts)
        return side_by_side(self.fence, parts)

    def _watch(self, parts: Sequence[Part]) -> None:
        """Let the logs be read once for all of these parts."""
        self._transactions.share_scans({part.tx.producer: _ends(part.tx) for part in parts if part.tx}, self._topics)

    def _prepare(self, txs: Sequence[Tx]) -> None:
        """Ask at once what `settle` asks first. It only saves requests: what fails is asked again, and explained."""
        if len(txs) > 1:
            with suppress(OnceonlyError):
                self._transactions.prefetch_pages({tx.producer: _ends(tx) for tx in txs}, self._topics)
                self._transactions.prefetch_coordinators(tx.id for tx in txs)

    def settle(self, part: Part) -> TxOutcome:
        """Commit the transaction if it is open. Reads the log before each attempt to end it.

        Raises:
            OutcomeUnknown: the brokers do not answer; call again.
        """
        if part.tx is None:
            return TxOutcome.LOST
        return _apply_resolution(part.tx, self._settle(part.tx))

    def fence(self, part: Part) -> TxOutcome:
        """Make sure that no process can publish the part any more, and only then read its outcome from the log.

        Raises:
            OutcomeUnknown, NotCommitted: the brokers do not answer; call again.
        """
        if part.tx is None:
            return TxOutcome.LOST
        discard_open(self._transactions, part.tx)
        return _apply_resolution(part.tx, self._await_outcome(part.tx))

    def observe_all(self, parts: Sequence[Part]) -> list[TxOutcome | None]:
        """Return how each part stands, and end nothing. None: open. LOST: also if open and its log has lost its rows.

        Raises:
            OutcomeUnknown, NotCommitted: the brokers do not answer, or it has ended and no marker shows how yet.
        """
        self._watch(parts)
        return side_by_side(self._observe, parts)

    def describe_all(self, parts: Sequence[Part]) -> list[str]:
        """Say what the log shows of each part, for each partition. Changes nothing."""
        self._watch(parts)
        return side_by_side(self._describe, parts)

    def resolve(self, parts: Sequence[Part], committed: bool) -> list[Part]:
        """Settle them, and record how each transaction ended: as the log shows, or else as a person says.

        After that none of these transactions is in doubt again, whatever happens to its log.
        """
        resolved_parts = []
        for part, outcome in zip(parts, self.settle_all(parts), strict=True):
            if part.tx and not part.tx.resolution:
                part = with_resolution(part, _resolution(outcome, committed))
            resolved_parts.append(part)
        return resolved_parts

    def _describe(self, part: Part) -> str:
        if part.tx is None:
            return f"{count(part.rows, 'row')} of {part.spool}: not written to Kafka yet"
        marks = []
        for (topic, number), state in self._marker_states(part.tx).items():
            marks.append(f"{topic}-{number}: {state.value}")
        words = "; ".join(marks)
        if part.tx.resolution:
            words += part.tx.resolution.words
        return f"{count(part.rows, 'row')} in transaction {part.tx.id}: {words}"

    def _observe(self, part: Part) -> TxOutcome | None:
        """Return how the part stands, see `observe_all`.

        One marker tells of all partitions, as in `_read_outcome`. Without one, only the coordinator can tell.
        A transaction that is not open and has no marker is no lost one: its commit may just be on its way to the log.
        """
        tx, deadline = part.tx, monotonic() + SETTLED
        if tx is None:
            return TxOutcome.LOST
        while True:
            states = self._marker_states(tx)
            outcomes = _outcomes_of(states)
            if outcomes:
                return _apply_resolution(tx, _single_outcome(outcomes))
            if is_open(self._transactions.describe([tx.id]).get(tx.id), tx):
                return TxOutcome.LOST if self._has_lost_rows(tx) else None
            if MarkerState.NONE not in states.values():
                return _apply_resolution(tx, TxOutcome.DOUBT)
            if monotonic() > deadline:
                raise self._missing_marker_error(tx, states)
            with wait_for(_name_end(tx)):
                sleep(PAUSE)

    def _settle(self, tx: Tx) -> TxOutcome:
        """Commit the transaction if it is open, until the log shows how it ended.

        Raises:
            OutcomeUnknown, NotCommitted: the brokers do not answer.
        """
        deadline, end_was_sent = monotonic() + PATIENCE, False
        recorded = tx  # with the log ends that the handle names; `tx` may become one with later ends
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
                self._transactions.end(tx.id, tx.producer_id, tx.epoch, commit=True)
                return self._await_outcome(tx)
            except EndRefused:
                discard_open(self._transactions, tx)  # now it is not open: only the log can show how it ended
                return self._await_outcome(tx)
            except (OutcomeUnknown, NotCommitted):
                if monotonic() > deadline:
                    raise
                with wait_for(_name_end(tx)):
                    sleep(PAUSE)

    def _has_lost_rows(self, tx: Tx) -> bool:
        """Return whether a log with the transaction's rows was cut off below them since they were acknowledged."""
        with self._lock:
            if self._cut_logs is None:
                self._cut_logs = open_transactions.find_cut_logs(self._transactions, self._topics, self._log_ends)
            return any((partition, end) in self._cut_logs for partition, (_, end) in tx.partitions.items())

    def _abort_without_rows(self, tx: Tx) -> TxOutcome:
        """Abort an open transaction whose rows are not in the log. Its marker will be above the log's present end."""
        reopened = self._find_open_transaction(tx)
        discard_open(self._transactions, tx)
        return self._await_outcome(reopened or tx)

    def _read_outcome(self, tx: Tx) -> TxOutcome | None:
        """Return the outcome according to the log; None while the transaction may be open.

        The marker of one partition is enough: the coordinator writes all of them from a single record of its own. They
        can only differ if a person has written one (`_missing_marker_error`). A commit counts once each has it.
        """
        states = self._marker_states(tx)
        outcomes = _outcomes_of(states)
        is_marker_missing = MarkerState.NONE in states.values()
        if outcomes == {TxOutcome.ALREADY_COMMITTED} and is_marker_missing:
            return self._await_outcome(tx, TxOutcome.ALREADY_COMMITTED)
        if outcomes == {TxOutcome.LOST} and is_marker_missing:
            # Aborted by hand in one partition, it may still be open in others, which a stalled process could commit.
            discard_open(self._transactions, tx)
            return self._await_outcome(tx)
        if outcomes:
            return _single_outcome(outcomes)
        return None if is_marker_missing else TxOutcome.DOUBT

    def _await_outcome(self, tx: Tx, committed: TxOutcome = TxOutcome.COMMITTED) -> TxOutcome:
        """Return the outcome of an ended transaction, after every partition shows it. Markers usually follow at once.

        A commit counts only then. The coordinator writes the markers one by one. Until a partition has its marker, its
        rows are hidden from readers. If the marker is never written, the spool has the only copy of them.

        Raises:
            OutcomeUnknown: a partition does not show the end yet.
        """
        deadline = monotonic() + SETTLED
        with wait_for(_name_end(tx)):
            while True:
                states = self._marker_states(tx)
                outcomes = _outcomes_of(states)
                if len(outcomes) > 1 or MarkerState.NONE not in states.values() or monotonic() > deadline:
                    break
                sleep(SOON)
        if outcomes == {TxOutcome.LOST}:
            return TxOutcome.LOST
        if len(outcomes) < 2 and MarkerState.NONE in states.values():
            raise self._missing_marker_error(tx, states)
        return committed if outcomes == {TxOutcome.ALREADY_COMMITTED} else TxOutcome.DOUBT

    def _missing_marker_error(self, tx: Tx, states: Mapping[Partition, MarkerState]) -> OutcomeUnknown:
        """Return the error for an ended transaction of which a partition has no marker.

        A broker that restarts while a partition has no leader may treat it as deleted and never write its marker.
        Seen with Kafka 4.3: the coordinator then reports "complete", and read_committed readers wait forever.
        """
        names = ", ".join(f"{topic}-{number}" for topic, number in _without_marker(states))
        description = self._transactions.describe([tx.id]).get(tx.id)
        reported_state = description.state if description else "no such transaction"
        is_never_written = description is None or description.state in COMPLETE_STATES
        advice = self._how_to_end_by_hand(tx, states) if is_never_written else ""
        remark = ""
        if MarkerState.COMMITTED in states.values():
            remark = " Other partitions show that it was committed."
        return OutcomeUnknown(
            f"transaction '{tx.id}' has ended, but the log of {names} does not show how.",
            f"Its marker is missing there after {SETTLED:g} s. Its coordinator reports {reported_state}.{remark}",
            f"Nothing is lost: the rows are in the spool. Publish again: onceonly recover. {advice}".strip(),
            code="marker-missing",
        )

    def _how_to_end_by_hand(self, tx: Tx, states: Mapping[Partition, MarkerState]) -> str:
        """Say what a person can do if the coordinator will never write the missing markers.

        To abort it is safe only if it cannot have been committed in another partition: its rows are then written again
        in all of them.
        """
        if {MarkerState.COMMITTED, MarkerState.UNKNOWN} & set(states.values()):
            return (
                "If this persists, the brokers have lost the end of a transaction that is, or may be, committed in "
                "other partitions. Do not abort it by hand: its rows in the partitions without a marker would be lost. "
                "Restore their logs from a replica or a copy, then: onceonly recover."
            )
        starts = self._transactions.read_starts(tx.producer_id, _without_marker(states))
        commands = []
        for (topic, number), start in sorted(starts.items()):
            place = f"--topic {topic} --partition {number} --start-offset {start}"
            commands.append(f"kafka-transactions --bootstrap-server … abort {place}")
        if not commands:
            return ""
        ends = "; ".join(commands)
        return (
            f"If this persists, the brokers have lost the transaction. End it yourself: {ends}. Then: onceonly "
            "recover, which writes its rows again."
        )

    def _find_open_transaction(self, tx: Tx) -> Tx | None:
        """Find the transaction, if the log is lost but the coordinator reports it as open. Then no marker was lost.

        From now on, its marker is looked for after the ends that the log had before the coordinator's report.
        """
        topics = {topic for topic, _ in tx.partitions}
        if self._transactions.read_topic_ids(topics).keys() != topics:
            return None
        ends = self._transactions.read_ends(tx.partitions)
        if not is_open(self._transactions.describe([tx.id]).get(tx.id), tx):
            return None
        if self._transactions.read_topic_ids(topics) != {topic: self._topics[topic] for topic in topics}:
            return None  # asked last: the ends are by name, and an id never comes back
        spans = {partition: (start, ends[partition]) for partition, (start, _) in tx.partitions.items()}
        return replace(tx, partitions=spans)

    def _marker_states(self, tx: Tx) -> dict[Partition, MarkerState]:
        """Return what the log shows of the transaction, by partition."""
        since = _ends(tx)
        ids = {topic: self._topics[topic] for topic, _ in since}
        return self._transactions.read_marker_states(since, tx.producer, ids, has_one_transaction=not tx.has_pooled_id)


def is_open(described: Described | None, tx: Tx) -> bool:
    """Return whether that is what its coordinator says of a transaction that has not begun to end."""
    if described is None:
        return False
    return described.state == "Ongoing" and (described.producer_id, described.epoch) == tx.producer


def _outcomes_of(states: Mapping[Partition, MarkerState]) -> set[TxOutcome]:
    """Return the outcomes that markers show; more than one if a person has written a marker."""
    return {OUTCOMES[state] for state in states.values() if state in OUTCOMES}


def _single_outcome(outcomes: set[TxOutcome]) -> TxOutcome:
    """Return the only outcome; DOUBT if markers contradict each other."""
    if len(outcomes) > 1:
        return TxOutcome.DOUBT
    (outcome,) = outcomes
    return outcome


def _without_marker(states: Mapping[Partition, MarkerState]) -> list[Partition]:
    """Return the partitions that do not show the end yet, in order."""
    return sorted(partition for partition, state in states.items() if state is MarkerState.NONE)


def _resolution(outcome: TxOutcome, committed: bool) -> Resolution:
    if outcome is TxOutcome.DOUBT:
        return Resolution(committed, "person")
    return Resolution(outcome is not TxOutcome.LOST, "log")


def _apply_resolution(tx: Tx, outcome: TxOutcome) -> TxOutcome:
    """Return the outcome that counts: what the log shows, whatever was recorded.

    Where the log shows nothing, the resolution ends the doubt.
    """
    if outcome is not TxOutcome.DOUBT or tx.resolution is None:
        return outcome
    return TxOutcome.ALREADY_COMMITTED if tx.resolution.committed else TxOutcome.LOST


def _ends(tx: Tx) -> dict[Partition, int]:
    """Return, by partition, an offset above the transaction's rows and below its marker."""
    return {partition: end for partition, (_, end) in tx.partitions.items()}


def side_by_side(function: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """Call it for all items, in parallel. All calls are completed before the first error is raised."""
    with ThreadPoolExecutor(MAX_PARALLEL_TRANSACTIONS) as pool:
        futures = [pool.submit(function, item) for item in items]
    return [future.result() for future in futures]


def _name_end(tx: Tx) -> str:
    topics = sorted({topic for topic, _ in tx.partitions})
    return f"the markers of transaction {tx.id} in topic {', '.join(topics)}"
