"""What brokers and topics are set to, and what this client is granted, against what sinks ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onceonly.errors import InvalidPipeline
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import TopicClient
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.probe.findings import Observation, Promise

SINK_TIMEOUT_SECONDS = KafkaSink.transaction_timeout
USUAL_MAX_BYTES = 1_000_000  # a row of that size fits Kafka's default of max.message.bytes
NO_LIMIT_MS = 2**63 - 1

TIMEOUTS = Promise("transaction-timeouts", f"brokers allow the {SINK_TIMEOUT_SECONDS:.0f} s of sinks")
LARGE_ROWS = Promise("large-rows", "a row of a million bytes is taken, as by Kafka's defaults")
OLD_ROWS = Promise("old-rows", "a row with a time of years ago is taken, as backfills write it")
KEYLESS_ROWS = Promise("rows-without-key", "a row without a key is taken")
REPLICAS = Promise("replicas", "as many replicas are in sync as min.insync.replicas asks for")
GRANTS = Promise("grants", "this client is granted what sinks need: on topics, and on transactional ids")
SETTING_BY_PROMISE = {
    LARGE_ROWS.name: "max.message.bytes",
    OLD_ROWS.name: "message.timestamp.before.max.ms",
    KEYLESS_ROWS.name: "cleanup.policy",
}
NEEDED_OPERATIONS = ("DESCRIBE", "READ", "WRITE")


def look_at_cluster(transactions: Transactions) -> Iterator[Observation]:
    """Compare transaction.max.timeout.ms with what sinks ask for."""
    try:
        longest = transactions.read_max_transaction_timeout()
    except InvalidPipeline as error:
        yield Observation(TIMEOUTS.name, error=error.why)
        return
    breach = ""
    if longest < SINK_TIMEOUT_SECONDS:
        breach = (
            f"transaction.max.timeout.ms is {longest * 1000:.0f}: lower KafkaSink(transaction_timeout=…), or raise it"
        )
    yield Observation(TIMEOUTS.name, breach)


def look_at_topic(topic: str, transactions: Transactions) -> Iterator[Observation]:
    """Look whether the topic takes anything at all now."""
    try:
        refusals = transactions.list_refusing_partitions([topic])
    except InvalidPipeline as error:
        yield Observation(REPLICAS.name, error=error.why)
        return
    yield Observation(REPLICAS.name, f"topic {refusals[0]}" if refusals else "")


def look_at_settings(topic: str, transactions: Transactions) -> Iterator[Observation]:
    """Look at the settings of a topic of the user by which it refuses rows; nothing is written to it."""
    try:
        config = transactions.read_topic_config(topic)
    except InvalidPipeline:
        for promise in (LARGE_ROWS, OLD_ROWS, KEYLESS_ROWS):
            yield Observation(promise.name, error=f"DescribeConfigs on topic '{topic}' is not granted to this client")
        return
    yield _judge_setting(LARGE_ROWS, topic, "max.message.bytes", config, lambda text: int(text) < USUAL_MAX_BYTES)
    if config.get("message.timestamp.type") == "LogAppendTime":
        yield Observation(OLD_ROWS.name)
    else:
        for name in ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"):
            if name in config:
                yield _judge_setting(OLD_ROWS, topic, name, config, lambda text: int(text) < NO_LIMIT_MS)
                break
    yield _judge_setting(KEYLESS_ROWS, topic, "cleanup.policy", config, lambda text: "compact" in text)


def _judge_setting(
    promise: Promise, topic: str, name: str, config: Mapping[str, str], refuses: Callable[[str], bool]
) -> Observation:
    text = config.get(name, "")
    is_refusing = bool(text) and refuses(text)
    return Observation(promise.name, f"topic '{topic}': {name} is {text}" if is_refusing else "")


def look_at_grants(
    topic: str | None, connection: KafkaConnection, id_prefix: str, transactions: Transactions
) -> Iterator[Observation]:
    """Ask the brokers what this client may do: with transactional ids of sinks, and with the topic of the user."""
    missing, prefix = [], f"{id_prefix}-"
    try:
        transactions.describe([f"{prefix}probe"])
        if not transactions.has_write_grant(f"{prefix}probe"):
            missing.append(f"Write on the TransactionalId prefix '{prefix}'")
    except InvalidPipeline:
        missing.append(f"Describe and Write on the TransactionalId prefix '{prefix}'")
    if topic:
        try:
            TopicClient(topic, connection).require_grants(NEEDED_OPERATIONS)
        except InvalidPipeline as error:
            missing.append(f"topic '{topic}': {error.why}")
    yield Observation(GRANTS.name, "; ".join(missing))
