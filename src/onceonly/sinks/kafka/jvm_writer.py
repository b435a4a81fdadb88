"""Writes rows to the spool and to Kafka in Spark's own JVM, so that no row goes through Python.

`RecordSink` of src/java does it, which a session has by a jar of this package. It checks rows by the rules of `limits`
and sends them by Kafka's Java client; whatever it does not accept comes back as facts, which get their words here.

Source of the data source's interface: Spark, org.apache.spark.sql.connector.write.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Mapping
from time import time
from typing import Any
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline, OnceonlyError
from onceonly.kafka import client_settings
from onceonly.kafka.connection import KafkaConnection
from onceonly.settings import Writer
from onceonly.sinks.kafka import limits, producer, refusals, spool
from onceonly.sinks.kafka.job import Job, Receipt
from onceonly.sinks.kafka.limits import QUEUE, Topic, Topics
from onceonly.sinks.kafka.refusals import Words
from onceonly.spark import jvm_jar
from onceonly.spark.conf import temporary_conf
from onceonly.spark.row_files import folder_uri

VARIABLE = "ONCEONLY_KAFKA_WRITER"
DATA_SOURCE = "onceonly.kafka.RecordSink"
SETTING = "onceonly.secret."  # and random digits: Spark hides what has such a name
ERROR_IN_TEXT = re.compile(r"ONCEONLY-WRITER-ERROR (\{.*?\})(?=$|\n|\\n)", re.MULTILINE)
FILE_SYSTEMS = ("", "file", "hdfs")  # which Spark reaches with what it has
BATCH_BYTES = 100_000  # of one partition's rows in a request; a third or ten times as many took more CPU
BUFFER_BYTES = 4 << 20  # of rows that wait to be sent, in each task: more gained nothing
MAX_BUFFER_BYTES = 32 << 20
AROUND_RECORDS = 1024  # bytes by which the client's estimate of a record is too large, at most
TUNING = ("compression.type", "linger.ms", "batch.size")  # which mean the same to librdkafka
COMPRESSION_ALIAS = "compression.codec"


def why_not(spool_uri: str, connection: KafkaConnection) -> str | None:
    """Return why Spark's JVM cannot write for this sink, whatever session it is; None: it can."""
    scheme = urlsplit(spool_uri).scheme
    if scheme not in FILE_SYSTEMS:
        return f"the spool is on {scheme}://"
    try:
        client_settings.java_options(connection)
    except InvalidPipeline as error:
        return error.why.rstrip(".")
    if jvm_jar.packaged_version() is None:
        return f"this installation has no {jvm_jar.JAR_NAME}"
    return None


def find_settings(spark: Any, job: Job, writer: Writer) -> dict[str, str] | None:
    """Return the Java client's settings for the session's JVM to write; None: Python workers are to.

    Raises:
        InvalidPipeline: the session has the jar in another version; or `writer` is "jvm", and it cannot write.
    """
    if writer == "python":
        return None
    connection, topics = job.connection, job.target.topics
    reason = why_not(job.folder, connection)
    if reason is None and not jvm_jar.is_in_session(spark):
        reason = f"Spark has no {jvm_jar.JAR_NAME}"
    if reason and writer == "jvm":
        raise InvalidPipeline(
            f"sink '{job.target.sink}': Spark's JVM cannot write its rows, and {VARIABLE} is 'jvm'.",
            f"{reason}.",
            f"Mend that, or unset {VARIABLE}: Python workers write them then. Nothing was staged.",
            code="writer-not-available",
        )
    if reason:
        return None
    room = max(topics.narrowest.room, 1000)
    tuning = {name: connection.settings[name] for name in TUNING if name in connection.settings}
    if COMPRESSION_ALIAS in connection.settings:
        tuning["compression.type"] = connection.settings[COMPRESSION_ALIAS]
    return {
        "client.id": "onceonly",
        "acks": "all",
        "enable.idempotence": "true",
        "batch.size": str(min(room, BATCH_BYTES)),
        "linger.ms": "50",
        "buffer.memory": str(max(_buffer_bytes(topics), min(room, QUEUE) + AROUND_RECORDS)),
        "max.request.size": str(room + AROUND_RECORDS),
        "max.block.ms": str(int(producer.PATIENCE * 1000)),
        "reconnect.backoff.ms": "10",
        "retry.backoff.ms": "20",
        **tuning,
        **client_settings.java_options(connection),
    }


def _buffer_bytes(topics: Topics) -> int:
    """Return room for two batches of each partition: with less, batches are sent before they are full."""
    partitions = sum(topic.partitions for topic in topics.limits.values())
    return min(max(BUFFER_BYTES, 2 * BATCH_BYTES * partitions), MAX_BUFFER_BYTES)


def run(job: Job, rows: Any, settings: Mapping[str, str]) -> list[Receipt]:
    """Stage rows in one Spark job.

    Args:
        settings: of the Java client.
    """
    spark = rows.sparkSession
    name, setting = f"receipts-{uuid.uuid4().hex}.json", f"{SETTING}{uuid.uuid4().hex}"
    description = _describe_job(job, settings, f"{folder_uri(job.folder)}/{name}")
    with temporary_conf(spark, {setting: json.dumps(description)}):
        rows.write.format(DATA_SOURCE).option("job", setting).mode("append").save()
    receipts = []
    for receipt in json.loads(spool.take_file(job.folder, name)):
        identity = tuple(receipt["producer"]) if receipt["producer"] and job.has_pooled_ids else None
        receipts.append(Receipt(**{**receipt, "producer": identity}))
    return receipts


def _describe_job(job: Job, settings: Mapping[str, str], receipts: str) -> dict[str, Any]:
    """Return the job in the shape of `Job.java`."""
    topics = job.target.topics
    unique_id = pooled_id = None
    if job.ids:
        unique_id = job.ids.unique_prefix
        pooled_id = job.ids.pooled_prefix
    return {
        "topics": {name: _describe_topic(topic) for name, topic in topics.limits.items()},
        "room": topics.narrowest.room,
        "producer": dict(settings),
        "transaction_timeout": int(job.target.timeout * 1000),
        "write": job.write,
        "unique_id": unique_id,
        "pooled_id": pooled_id,
        "spool": folder_uri(job.spool) if job.spool else None,
        "receipts": receipts,
    }


def _describe_topic(topic: Topic) -> dict[str, Any]:
    return {
        "partitions": topic.partitions,
        "keyed": topic.keyed,
        "stamped": topic.stamped,
        "behind": topic.accepted_behind,
        "ahead": topic.ahead,
    }


# ---- errors


def find_error(job: Job, text: str) -> OnceonlyError | None:
    """Return the error that a task has reported, if there is one in the text of Spark's error."""
    match = ERROR_IN_TEXT.search(text)
    if match is None:
        return None
    facts = json.loads(match[1])
    if facts["kind"] == "row":
        return _explain_row(job, facts)
    return _explain_client(job, facts)


def _explain_row(job: Job, facts: Mapping[str, Any]) -> OnceonlyError:
    key = base64.b64decode(facts["key"]) if "key" in facts else None
    place = f"row {facts['row']} of Spark partition {facts['part']}"
    return refusals.error(job.target.sink, place, key, _describe_row(job.target.topics, facts))


def _describe_row(topics: Topics, facts: Mapping[str, Any]) -> Words:
    """Return the words for the rule of RecordLimits.java that a row breaks."""
    name, time_millis = facts["topic"], facts["timestamp"]
    if facts["rule"] == "topic":
        return refusals.topic(name, topics.limits)
    if facts["rule"] == "size":
        return limits.describe_size(facts["size"], facts["batch"], topics.narrowest)
    topic, now = topics.limits[name], int(time() * 1000)
    words: dict[str, Callable[[], Words]] = {
        "partition": lambda: refusals.partition(facts["partition"], name, topic.partitions),
        "key": lambda: refusals.key(name),
        "header": lambda: refusals.UNUSABLE_HEADER,
        "before_1970": lambda: refusals.before_1970(time_millis, name),
        "start_of_1970": lambda: refusals.start_of_1970(name),
        "too_old": lambda: refusals.too_old(time_millis, name, topic.behind, topic.earliest(now) or 0),
        "too_far_ahead": lambda: refusals.too_far_ahead(time_millis, name, topic.ahead, topic.latest(now) or 0),
    }
    return words[facts["rule"]]()


def _explain_client(job: Job, facts: Mapping[str, Any]) -> OnceonlyError:
    code, why = facts["code"], facts["why"]
    if "failures" not in facts:
        return producer.explain(job.target, code, why)
    first = producer.describe_failure(code, why, facts.get("topic", ""), facts.get("partition", -1))
    if producer.is_final(code):
        return producer.explain(job.target, code, first)
    return producer.not_delivered_error(job.target, facts["failures"], first)
