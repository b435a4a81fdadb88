"""The checks of a Kafka sink before any work: topics, the brokers' limits, the schema file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from onceonly.errors import InvalidPipeline
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry import avro_schema
from onceonly.kafka.topic import TopicClient
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka.limits import Topic, Topics
from onceonly.sinks.kafka.producer import SendTarget

ANY = 2**63 - 1  # milliseconds: in Kafka, no limit
USUAL_LARGEST = 1_048_588  # Kafka's default of max.message.bytes
SIZES = ("max.message.bytes", "segment.bytes")  # of a batch
REQUEST = 1024  # maximum bytes of a request in addition to its batch
KEPT, UNCOMPRESSED = "producer", "uncompressed"  # compression.type of which brokers leave our batches as they are
SAFE_VERSION = 2  # transaction.version: each end raises the epoch, so a zombie cannot write into a later transaction


def check(
    config: KafkaSink, late: bool, transactions: Transactions, connection: KafkaConnection, root: Path
) -> list[str]:
    """Check schema, topics and limits; return notes for the user.

    Raises:
        InvalidPipeline: as for `check_writable`, or the schema cannot be used.
        NotCommitted: no broker answers.
    """
    schema(config, root)
    notes = check_writable(config, transactions, connection)
    if config.guarantee == "exactly-once":
        _require_write_grant(config, transactions)
        how = "at commit, in transactions" if late else "in transactions that the commit ends"
        notes += _warnings(config, transactions)
    else:
        how = f"{config.guarantee}, without transactions"
    return [f"{config.name}: writes to {', '.join(config.written_topics())} {how}", *notes]


def check_writable(config: KafkaSink, transactions: Transactions, connection: KafkaConnection) -> list[str]:
    """Check topics and brokers that are to be written to; return notes on limits that could not be determined.

    Raises:
        InvalidPipeline: a topic is missing, a permission is missing, or the brokers' limits are too low.
        NotCommitted: no broker answers.
    """
    operations = ["DESCRIBE", "WRITE"]
    if config.guarantee == "exactly-once":
        operations.append("READ")  # the evidence is read from the log
    # librdkafka has the best messages about failed connections
    for name in config.written_topics():
        TopicClient(name, connection).require_grants(operations)
    if config.guarantee != "exactly-once":
        return []
    return check_transactions(config, transactions)


def check_transactions(config: KafkaSink, transactions: Transactions) -> list[str]:
    """Check, as `check_writable` does, that the brokers have what transactions need."""
    transactions.describe([f"{config.id_prefix}-check"])  # fails if there is no permission for the prefix
    if config.ids == "pool":
        _require_safe_pool(config, transactions)
    return _check_timeout(config, transactions)


def _require_write_grant(config: KafkaSink, transactions: Transactions) -> None:
    """Raise InvalidPipeline unless this client may open transactions under the sink's prefix."""
    if transactions.has_write_grant(f"{config.id_prefix}-check"):
        return
    raise InvalidPipeline(
        f"sink '{config.name}': the brokers do not allow transactions under '{config.id_prefix}-…'.",
        f"Not granted to this client: Write on the TransactionalId prefix '{config.id_prefix}-'.",
        "kafka-acls --bootstrap-server … --add --allow-principal User:… --operation Describe --operation Write "
        f"--transactional-id {config.id_prefix}- --resource-pattern-type prefixed. Nothing was written.",
        code="kafka-access-denied",
    )


def _require_safe_pool(config: KafkaSink, transactions: Transactions) -> None:
    """Raise InvalidPipeline unless the cluster's transaction.version is safe for ids that are used again."""
    version = transactions.read_transaction_version()
    if version < SAFE_VERSION:
        raise InvalidPipeline(
            f"sink '{config.name}': ids='pool' is not safe on these brokers.",
            f"Their transaction.version is {version}: delayed rows may end up in a later transaction with the same id.",
            f"Raise it (kafka-features upgrade --feature transaction.version={SAFE_VERSION}), or use ids='unique'.",
            code="transaction-version-unsafe",
        )


def topics(config: KafkaSink, transactions: Transactions) -> Topics:
    """Return the limits of each topic, according to its brokers.

    Raises:
        InvalidPipeline: a topic does not exist.
    """
    partition_counts = transactions.count_partitions(config.written_topics())
    missing = [name for name in config.written_topics() if name not in partition_counts]
    if missing:
        raise InvalidPipeline(
            f"sink '{config.name}': there is no topic {', '.join(repr(name) for name in missing)}.",
            "Onceonly does not create topics.",
            "Create it (kafka-topics --create), or correct KafkaSink(topic=…). Nothing was written.",
            code="topic-missing",
        )
    return Topics({name: _topic(name, number, transactions) for name, number in partition_counts.items()})


def target(config: KafkaSink, connection: KafkaConnection, transactions: Transactions) -> SendTarget:
    """Return what a producer of the sink needs. Raises InvalidPipeline: a topic does not exist."""
    limits = topics(config, transactions)
    return SendTarget(config.name, connection.librdkafka(), limits, config.transaction_timeout)


def _topic(name: str, partitions: int, transactions: Transactions) -> Topic:
    """Return the limits of one topic; only the usual ones if its configuration may not be read."""
    try:
        config = transactions.read_topic_config(name)
    except InvalidPipeline:  # needs DescribeConfigs
        return Topic(partitions, USUAL_LARGEST)
    stamped = config.get("message.timestamp.type") == "LogAppendTime"
    behind = ahead = None
    if not stamped:
        behind, ahead = _milliseconds(config, "before"), _milliseconds(config, "after")
    sizes = {setting: int(config[setting]) for setting in SIZES if setting in config}
    if request := _largest_request(transactions):
        sizes["the brokers' socket.request.max.bytes"] = request - REQUEST
    setting = min(sizes, key=lambda name: sizes[name])
    return Topic(
        partitions,
        sizes[setting],
        setting,
        recompressed=config.get("compression.type", KEPT) not in (KEPT, UNCOMPRESSED),
        keyed="compact" in config.get("cleanup.policy", ""),
        stamped=stamped,
        behind=behind,
        ahead=ahead,
    )


def _largest_request(transactions: Transactions) -> int | None:
    try:
        return transactions.read_max_request_bytes()
    except InvalidPipeline:  # needs DescribeConfigs on the Cluster
        return None


def _milliseconds(config: Mapping[str, str], side: str) -> int | None:
    """Return by how much a timestamp may differ from the broker's clock; None: by any time.

    Before Kafka 4, one setting is for both sides.
    """
    for name in (side, "difference"):
        text = config.get(f"message.timestamp.{name}.max.ms")
        if text is not None and int(text) < ANY:
            return int(text)
    return None


def schema(config: KafkaSink, root: Path) -> str | None:
    """Return the text of the file of an Avro schema of values; None if values have none.

    Raises:
        InvalidPipeline: it cannot be read, or is not an Avro schema.
    """
    if config.schema is None or config.format != "avro":
        return None
    flaw: Exception | None
    try:
        text = (root / config.schema).read_text(encoding="utf-8")
        flaw = avro_schema.find_flaw(text)
    except (OSError, UnicodeDecodeError) as unreadable:
        flaw = unreadable
    if flaw:
        raise InvalidPipeline(
            f"sink '{config.name}': the schema '{config.schema}' cannot be used.",
            f"{type(flaw).__name__}: {flaw}",
            f"Correct the file, or KafkaSink(schema=…), a path relative to {root}. Nothing was written.",
            code="schema-unusable",
        ) from flaw
    return text


def _check_timeout(config: KafkaSink, transactions: Transactions) -> list[str]:
    """Raise InvalidPipeline if the brokers refuse the time-out; return a note if their limit is not known."""
    try:
        max_timeout = transactions.read_max_transaction_timeout()
    except InvalidPipeline:
        return [f"{config.name}: transaction.max.timeout.ms of the brokers is unknown (no DescribeConfigs on Cluster)"]
    if config.transaction_timeout > max_timeout:
        raise InvalidPipeline(
            f"sink '{config.name}': cannot open transactions of {config.transaction_timeout:g} s.",
            f"transaction.timeout.ms would be {config.transaction_timeout * 1000:.0f} and the brokers allow at most "
            f"{max_timeout * 1000:.0f} (transaction.max.timeout.ms).",
            "Lower KafkaSink(transaction_timeout=…) or raise the brokers' limit. Nothing was written.",
            code="transaction-timeout-too-long",
        )
    return []


def _warnings(config: KafkaSink, transactions: Transactions) -> list[str]:
    """Return notes on settings of cluster and topics with which rows or outcomes may be lost."""
    notes = []
    version = transactions.read_transaction_version()
    if version < SAFE_VERSION:
        notes.append(
            f"{config.name}: the cluster's transaction.version is {version}. Below {SAFE_VERSION} (Kafka 4), delayed "
            "rows of a fenced producer may end up in the next transaction of its id (this sink uses each id only once)"
        )
    brokers = len(transactions.list_brokers())
    copies = _state_log_copies(transactions)
    if 0 < copies < min(3, brokers):
        notes.append(
            f"{config.name}: __transaction_state has {copies} replicas on {brokers} brokers; 3 survive the loss of one"
        )
    for name in config.written_topics():
        settings: Mapping[str, str] = {}
        with suppress(InvalidPipeline):
            settings = transactions.read_topic_config(name)
        if settings.get("cleanup.policy") == "compact":
            notes.append(
                f"{config.name}: topic '{name}' is compacted. After its markers are removed (delete.retention.ms), an "
                "outcome that was not recorded before is in doubt"
            )
        if brokers > 1:
            why = _why_records_may_be_lost(settings, transactions.read_replication_factors([name]).get(name, 0))
            if why:
                notes.append(f"{config.name}: topic '{name}' may lose acknowledged records with one broker: {why}")
    return notes


def _why_records_may_be_lost(settings: Mapping[str, str], copies: int) -> str:
    """Return why one broker's loss could take rows or markers that were acknowledged; empty if it could not."""
    if copies == 1:
        return "it has 1 copy"
    if settings.get("unclean.leader.election.enable") == "true":
        return "a replica that lacks them may become its leader (unclean.leader.election.enable)"
    if settings.get("min.insync.replicas") == "1":
        return "one replica is enough (min.insync.replicas=1)"
    return ""


def _state_log_copies(transactions: Transactions) -> int:
    """Return the replication factor of the topic that holds transaction state; 0 if it is not known."""
    try:
        return transactions.read_state_log_replication()
    except InvalidPipeline:  # needs DescribeConfigs
        return 0
