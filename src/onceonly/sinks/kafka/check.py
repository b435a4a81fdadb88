"""What a Kafka sink can know before any work: topics, limits of the brokers, schema file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from onceonly.errors import InvalidPipeline
from onceonly.kafka import avro
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import TopicClient
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka.limits import Topic, Topics

ANY = 2**63 - 1  # milliseconds: Kafka's way to say that there is no bound
USUAL_LARGEST = 1_048_588  # Kafka's default of max.message.bytes
SOUND_VERSION = 2  # of transactions: each end bumps the epoch, so that no zombie can write into a later one


def check(config: KafkaSink, late: bool, known: Transactions, connection: KafkaConnection, root: Path) -> list[str]:
    """Notes for the user.

    Raises:
        InvalidPipeline: as `refuse`, or the schema cannot be used.
        NotCommitted: no broker answers.
    """
    schema(config, root)
    notes = refuse(config, known, connection)
    way = {"exactly-once": "at commit, in transactions" if late else "in transactions that the commit ends"}
    how = way.get(config.guarantee, f"{config.guarantee}, without transactions")
    if config.guarantee == "exactly-once":
        notes += _warnings(config, known)
    return [f"{config.name}: writes to {', '.join(config.allowed)} {how}", *notes]


def refuse(config: KafkaSink, known: Transactions, connection: KafkaConnection) -> list[str]:
    """Notes on what could not be asked.

    Raises:
        InvalidPipeline: a topic is missing, something is not granted, or the brokers' limits are too low.
        NotCommitted: no broker answers.
    """
    for name in config.allowed:
        TopicClient(name, connection).describe()  # librdkafka says best what keeps a client out
    if config.guarantee != "exactly-once":
        return []
    known.describe([f"{config.id_prefix}-check"])  # refused where the prefix is not granted
    if config.ids == "pool" and (version := known.transaction_version()) < SOUND_VERSION:
        raise InvalidPipeline(
            f"sink '{config.name}': ids='pool' is not safe on these brokers.",
            f"Their transaction.version is {version}: stalled rows may land in a later transaction of the id.",
            f"Raise it (kafka-features upgrade --feature transaction.version={SOUND_VERSION}), or use ids='unique'.",
        )
    return _check_timeout(config, known)


def topics(config: KafkaSink, known: Transactions) -> Topics:
    """What each topic takes, as its brokers say.

    Raises:
        InvalidPipeline: a topic does not exist.
    """
    counts = known.partitions(config.allowed)
    missing = [name for name in config.allowed if name not in counts]
    if missing:
        raise InvalidPipeline(
            f"sink '{config.name}': there is no topic {', '.join(repr(name) for name in missing)}.",
            "Onceonly creates no topics.",
            "Create it (kafka-topics --create), or correct KafkaSink(topic=…). Nothing was written.",
        )
    return Topics({name: _topic(name, counts[name], known) for name in counts})


def _topic(name: str, partitions: int, known: Transactions) -> Topic:
    try:
        config = known.topic_config(name)
    except InvalidPipeline:  # not everyone may ask (DescribeConfigs)
        return Topic(partitions, USUAL_LARGEST)
    stamped = config.get("message.timestamp.type") == "LogAppendTime"
    return Topic(
        partitions,
        int(config["max.message.bytes"]),
        keyed="compact" in config.get("cleanup.policy", ""),
        stamped=stamped,
        behind=None if stamped else _milliseconds(config, "before"),
        ahead=None if stamped else _milliseconds(config, "after"),
    )


def _milliseconds(config: Mapping[str, str], side: str) -> int | None:
    """By which a record may be dated before or after its arrival. Below Kafka 4 there is an older setting for both."""
    own, both = (config.get(f"message.timestamp.{name}.max.ms") for name in (side, "difference"))
    known = [int(most) for most in (own, both) if most is not None and int(most) < ANY]
    return known[0] if known else None


def schema(config: KafkaSink, root: Path) -> str | None:
    """The text of the schema file.

    Raises:
        InvalidPipeline: it cannot be read, or is no Avro schema.
    """
    if config.schema is None:
        return None
    flaw: Exception | None
    try:
        text = (root / config.schema).read_text(encoding="utf-8")
        flaw = avro.flaw(text)
    except (OSError, UnicodeDecodeError) as unreadable:
        flaw = unreadable
    if flaw:
        raise InvalidPipeline(
            f"sink '{config.name}': the schema '{config.schema}' cannot be used.",
            f"{type(flaw).__name__}: {flaw}",
            f"Correct the file, or KafkaSink(schema=…); it is looked up in {root}. Nothing was written.",
        ) from flaw
    return text


def _check_timeout(config: KafkaSink, known: Transactions) -> list[str]:
    try:
        most = known.transaction_max_timeout()
    except InvalidPipeline:
        return [f"{config.name}: the brokers do not tell their transaction.max.timeout.ms (DescribeConfigs on Cluster)"]
    if config.transaction_timeout > most:
        raise InvalidPipeline(
            f"sink '{config.name}': cannot open transactions of {config.transaction_timeout:g} s.",
            f"transaction.timeout.ms would be {config.transaction_timeout * 1000:.0f} and the brokers allow at most "
            f"{most * 1000:.0f} (transaction.max.timeout.ms).",
            "Lower KafkaSink(transaction_timeout=…) or raise the brokers' limit. Nothing was written.",
        )
    return []


def _warnings(config: KafkaSink, known: Transactions) -> list[str]:
    notes = []
    version = known.transaction_version()
    if version < SOUND_VERSION:
        notes.append(
            f"{config.name}: the cluster's transaction.version is {version}; below {SOUND_VERSION} (Kafka 4) a "
            "producer that was fenced late may add rows to the next transaction of its id (ours are never used again)"
        )
    copies, brokers = _state_log_copies(known), len(known.brokers())
    if 0 < copies < min(3, brokers):
        notes.append(f"{config.name}: __transaction_state has {copies} copies on {brokers} brokers; 3 survive a loss")
    for name in config.allowed:
        policy = None
        with suppress(InvalidPipeline):
            policy = known.topic_config(name).get("cleanup.policy")
        if policy == "compact":
            notes.append(
                f"{config.name}: topic '{name}' is compacted; once its markers are removed (delete.retention.ms) "
                "the outcome of a transaction that was never recorded is in doubt"
            )
    return notes


def _state_log_copies(known: Transactions) -> int:
    try:
        return known.state_log_copies()
    except InvalidPipeline:  # not everyone may ask
        return 0
