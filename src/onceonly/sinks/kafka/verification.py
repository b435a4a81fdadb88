"""Compares topics with all that a sink has published to them.

Without reading rows: the ids of the topics, where their logs start and end, the batch that ended them after the last
publication, and which transactions of the sink the coordinators show as committed. With rows: each log is read once,
and the records of each transaction are counted and hashed, by producer id and epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.sink import Answer
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published
from onceonly.counts import count
from onceonly.kafka.log_transactions import LogContent, LoggedTransaction
from onceonly.kafka.markers import MarkerState, PartitionLog
from onceonly.kafka.transactions import Transactions
from onceonly.sinks.kafka import digest, history
from onceonly.sinks.kafka.handle import KafkaHandle, Part, Partition, Tx, owner, unique_ids_pattern
from onceonly.sinks.staging.verification import (
    MISSING_ADVICE,
    as_accepted_loss,
    as_right,
    as_unknown,
    as_unrecorded,
    as_wrong,
    parse_handles,
)

RECORDS_ADVICE = "Readers may have read both. Remove the copy by a topic of its own, or let readers drop it by its key."
Sum = tuple[int, int]  # how many records, and the sum of their hashes


def verify(
    sink: str, client: Transactions, bootstrap: str, names: Sequence[str], published: Sequence[Published], depth: Depth
) -> Iterator[Finding]:
    """Compare the topics with what was published to them, see `VerifiableTarget`.

    Args:
        names: of the topics that the sink may write to now.
    Raises:
        NotCommitted: the brokers do not answer.
    """
    valid, handles, damaged = parse_handles(published, lambda handle: KafkaHandle.parse(sink, handle))
    yield from damaged
    topics = sorted({*names, *(name for handle in handles for name in handle.topics)})
    yield from TopicVerification(client, bootstrap, topics, valid, handles, depth).run()


@dataclass
class TopicVerification:
    """One comparison.

    Args:
        topics: all names that were published to, or may be now.
        published: with valid handles, in the order of decisions.
    """

    client: Transactions
    bootstrap: str
    topics: Sequence[str]
    published: Sequence[Published]
    handles: Sequence[KafkaHandle]
    depth: Depth
    cluster: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._contents: dict[Partition, LogContent] = {}
        self._by_producer: dict[tuple[Partition, int, int], list[LoggedTransaction]] = defaultdict(list)
        self._matched: set[int] = set()  # ids of the logged transactions that are recorded ones
        self._owners: dict[tuple[str, Sum], int] = {}  # (topic, records) -> the epoch that published them

    def run(self) -> Iterator[Finding]:
        self.cluster = self.client.read_cluster_id()
        partitions: list[Partition] = []
        for name, number_of_partitions in self.client.count_partitions(self.topics).items():
            partitions += [(name, number) for number in range(number_of_partitions)]
        self.starts, self.ends = self.client.read_log_starts(partitions), self.client.read_ends(partitions)
        self.topic_ids = self.client.read_topic_ids(self.topics)  # asked last: ends are by name
        if self.depth.reads_rows:
            self._read_logs(partitions)
            self._match_recorded()
        for publication, handle in zip(self.published, self.handles, strict=True):
            yield self._judge(publication, handle)
        yield from self._judge_ends()
        yield from self._judge_own_transactions()
        yield from self._judge_other_transactions()

    def _read_logs(self, partitions: Sequence[Partition]) -> None:
        for done, partition in enumerate(partitions, 1):
            name, number = partition
            if name not in self.topic_ids:
                continue
            log = PartitionLog(name, number, self.topic_ids[name])
            content = self.client.read_content(log, self._find_start(partition), self.ends[partition])
            self._contents[partition] = content
            for transaction in content.transactions:
                key = partition, transaction.producer_id, transaction.epoch
                if transaction.is_transactional:
                    self._by_producer[key].append(transaction)
            self.depth.show_progress(done, len(partitions))

    def _match_recorded(self) -> None:
        """Find the recorded transactions, also those that have lost records: none of them is a copy of another."""
        for handle in self.handles:
            for part in handle.parts:
                if part.tx and handle.cluster == self.cluster:
                    logged, _ = self._find_logged(part.tx)
                    self._matched.update(map(id, logged))

    def _find_start(self, partition: Partition) -> int:
        """Return from which offset to read a log: what was published before `since` is not looked at."""
        log_start, firsts = self.starts[partition], list[int]()
        if self.depth.since is None:
            return log_start
        for publication, handle in zip(self.published, self.handles, strict=True):
            if publication.at < self.depth.since:
                continue
            for part in handle.parts:
                if part.tx and partition in part.tx.partitions:
                    firsts.append(part.tx.partitions[partition][0] or log_start)
        return max(log_start, min(firsts, default=self.ends[partition]))

    # ---- one publication

    def _judge(self, publication: Published, handle: KafkaHandle) -> Finding:
        if publication.missing:
            return as_accepted_loss(publication)
        place = self._judge_place(publication, handle)
        if place:
            return place
        if handle.guarantee != "exactly-once":
            why = f"it was published with guarantee={handle.guarantee!r}: no transaction shows what came of it"
            return as_unknown(publication, FindingCode.NO_EVIDENCE, why)
        spans = self._judge_spans(publication, handle)
        if spans:
            return spans
        if self.depth.reads_rows:
            return self._judge_records(publication, handle)
        why = f"{count(handle.rows, 'row')} in {count(len(handle.parts), 'transaction')}: the topics are the same, and "
        return as_right(publication, FindingCode.RIGHT, f"{why}their logs hold the offsets that were written")

    def _judge_place(self, publication: Published, handle: KafkaHandle) -> Finding | None:
        """Judge whether these are the topics that were published to."""
        if handle.cluster != self.cluster:
            address = publication.publication.proof.get("bootstrap")
            why = f"it was published to the cluster {handle.cluster}, and {self.bootstrap} is {self.cluster}"
            if address == self.bootstrap:
                return as_wrong(publication, FindingCode.TARGET_REPLACED, why, MISSING_ADVICE)
            return as_unknown(publication, FindingCode.ELSEWHERE, why)
        for name in {topic for part in handle.parts if part.tx for topic, _ in part.tx.partitions}:
            if name not in self.topic_ids:
                why = f"there is no topic '{name}'"
                return as_wrong(publication, FindingCode.TARGET_MISSING, why, MISSING_ADVICE)
            if self.topic_ids[name] != handle.topics[name]:
                why = f"topic '{name}' has the id {self.topic_ids[name]}, and {handle.topics[name]} was published to"
                return as_wrong(publication, FindingCode.TARGET_REPLACED, why, MISSING_ADVICE)
        return None

    def _judge_spans(self, publication: Published, handle: KafkaHandle) -> Finding | None:
        """Judge whether the logs still have the offsets of its records and markers."""
        gone = list[str]()
        for part in handle.parts:
            if part.tx is None:
                if part.rows:
                    why = f"{count(part.rows, 'row')} of {part.spool} have no transaction"
                    return as_wrong(publication, FindingCode.RECORD_DIFFERS, why)
                continue
            for (name, number), (first, end) in part.tx.partitions.items():
                log_end = self.ends.get((name, number), 0)
                if log_end <= end:  # its marker is at that offset, or above
                    why = f"topic '{name}' partition {number} ends at {log_end:,}, and rows were written up to {end:,}"
                    return as_wrong(publication, FindingCode.TARGET_WENT_BACK, why, MISSING_ADVICE)
                start = self.starts[name, number]
                if start > (end - 1 if first is None else first):
                    gone.append(f"topic '{name}' partition {number} begins at {start:,}")
        if gone:
            why = f"{gone[0]}: retention, or a person, has removed records of it"
            return as_unknown(publication, FindingCode.HISTORY_GONE, why)
        return None

    def _judge_records(self, publication: Published, handle: KafkaHandle) -> Finding:
        """Compare the records of its transactions with the recorded numbers and the digest."""
        records, total, is_readable = 0, 0, True
        all_logged = list[LoggedTransaction]()
        for part in handle.parts:
            if part.tx is None:
                continue
            logged, gone = self._find_logged(part.tx)
            finding = self._judge_part(publication, part, part.tx, logged, gone)
            if finding:
                return finding
            for transaction in logged:
                records += transaction.records
                is_readable = is_readable and transaction.total is not None
                total += transaction.total or 0
            self._note_owner(publication.epoch, logged)
            all_logged += logged
        self._note_owner(publication.epoch, all_logged)
        recorded = handle.data.get("digest")
        if recorded and is_readable and recorded != digest.to_text(total):
            why = f"the digest of its {count(records, 'record')} is {digest.to_text(total)}, and {recorded} is recorded"
            return as_wrong(publication, FindingCode.RECORDS_DIFFER, why, MISSING_ADVICE)
        why = f"{count(records, 'record')} in {count(len(handle.parts), 'committed transaction')}"
        if recorded and is_readable:
            why += f", with the digest {recorded}"
        return as_right(publication, FindingCode.RIGHT, why)

    def _find_logged(self, tx: Tx) -> tuple[list[LoggedTransaction], bool]:
        """Return the transaction as the logs have it, and whether some of them have lost offsets of it."""
        logged, has_lost = list[LoggedTransaction](), False
        for partition, (first, end) in tx.partitions.items():
            content, lowest = self._contents.get(partition), end - 1
            if content is None:
                has_lost = True
                continue
            transactions = self._by_producer.get((partition, tx.producer_id, tx.epoch), [])
            number = bisect_left(transactions, end, key=attrgetter("first")) - 1  # the last one that begins before it
            if number >= 0 and (first is None or transactions[number].first >= first):
                logged.append(transactions[number])  # before Kafka 4, earlier ones of a producer have the same epoch
                lowest = transactions[number].first
            has_lost = has_lost or content.has_lost(lowest if first is None else first, end)
        return logged, has_lost

    def _judge_part(
        self, publication: Published, part: Part, tx: Tx, logged: Sequence[LoggedTransaction], has_lost: bool
    ) -> Finding | None:
        name = f"transaction {tx.id} (producer {tx.producer_id}, epoch {tx.epoch})"
        states = {transaction.state for transaction in logged}
        if MarkerState.ABORTED in states:
            why = f"{name} was aborted, as its marker shows"
            return as_wrong(publication, FindingCode.TRANSACTION_ABORTED, why, MISSING_ADVICE)
        if MarkerState.NONE in states:
            why = f"{name} has no marker: it has not ended"
            return as_wrong(publication, FindingCode.TRANSACTION_OPEN, why, MISSING_ADVICE)
        records = sum(transaction.records for transaction in logged)
        if records == part.rows:
            return None
        if has_lost or MarkerState.UNKNOWN in states:
            why = f"{records:,} of {count(part.rows, 'record')} of {name} are left: others were removed or compacted"
            return as_unknown(publication, FindingCode.HISTORY_GONE, why)
        why = f"{name} has {count(records, 'record')}, and {part.rows:,} were published"
        return as_wrong(publication, FindingCode.ROW_COUNT, why, MISSING_ADVICE)

    def _note_owner(self, epoch: int, logged: Sequence[LoggedTransaction]) -> None:
        """Remember whose records these are: those of each partition, and all of them in each topic."""
        groups: dict[tuple[str, int | None], list[LoggedTransaction]] = defaultdict(list)
        for transaction in logged:
            log = transaction.log
            groups[log.topic, log.number].append(transaction)
            groups[log.topic, None].append(transaction)
        for (topic, _), transactions in groups.items():
            records = _sum(transactions)
            if records:
                self._owners.setdefault((topic, records), epoch)

    # ---- the topics

    def _judge_ends(self) -> Iterator[Finding]:
        """Compare the batches that ended the logs after the last publication: a log may be cut off and grow again."""
        for publication, handle in reversed(list(zip(self.published, self.handles, strict=True))):
            proof = publication.publication.proof
            if publication.missing or not proof.get("batches"):
                continue
            if handle.cluster != self.cluster or any(
                self.topic_ids.get(name) != id for name, id in handle.topics.items()
            ):
                return  # those that have rows in another topic are accused of that
            names = sorted(proof["topics"])
            comparison = history.compare(self.client, self.bootstrap, names, publication.publication)
            if comparison.answer is Answer.WENT_BACK:
                yield as_wrong(publication, FindingCode.TARGET_WENT_BACK, comparison.why, MISSING_ADVICE)
            return

    def _judge_own_transactions(self) -> Iterator[Finding]:
        """Find transactions of this sink that were committed, and are not recorded, as far as coordinators know them.

        An id of a pool is used again, and does not tell of which checkpoint its last transaction was.
        """
        recorded, prefixes, last = set[str](), set[str](), 0
        for handle in self.handles:
            recorded.update(part.tx.id for part in handle.parts if part.tx)
            prefixes.add(handle.txn.prefix)
            last = max(last, handle.txn.epoch)
            if handle.cluster != self.cluster:
                return
        for prefix in sorted(prefixes):
            unrecorded: dict[int, str] = {}
            for id in self.client.list_committed(unique_ids_pattern(prefix)):
                txn = owner(id)
                if txn and id not in recorded:
                    unrecorded.setdefault(txn.epoch, id)
            for epoch, id in sorted(unrecorded.items()):
                is_awaited = epoch > last or epoch in self.depth.open_epochs  # intervals are published in any order
                yield as_unrecorded(f"the committed transaction {id} is of checkpoint {epoch}", is_awaited)

    def _judge_other_transactions(self) -> Iterator[Finding]:
        """Find committed records that are those of a publication, in a transaction that is not recorded, or in none."""
        by_producer: dict[tuple[str, int, int], list[LoggedTransaction]] = defaultdict(list)
        for (name, _), content in self._contents.items():
            for transaction in content.transactions:
                if transaction.state is MarkerState.COMMITTED and id(transaction) not in self._matched:
                    by_producer[name, transaction.producer_id, transaction.epoch].append(transaction)
        for (name, producer_id, epoch), transactions in by_producer.items():
            for group in (transactions, *([one] for one in transactions)):
                records = _sum(group)
                if records is None or (name, records) not in self._owners:
                    continue
                first = group[0]
                why = (
                    f"topic '{name}' has {count(records[0], 'record')} of epoch {self._owners[name, records]} a second "
                    f"time: committed by producer {producer_id}, epoch {epoch}, from partition {first.log.number} "
                    f"offset {first.first:,} on"
                )
                yield Finding(Judgement.WRONG, FindingCode.ROWS_TWICE, why, self._owners[name, records], RECORDS_ADVICE)
                break


def _sum(transactions: Sequence[LoggedTransaction]) -> Sum | None:
    """Return how many records these are, and the sum of their hashes; None: none, or not all can be read."""
    records, total = 0, 0
    for transaction in transactions:
        if transaction.total is None:
            return None
        records, total = records + transaction.records, (total + transaction.total) % 2**64
    return (records, total) if records else None
