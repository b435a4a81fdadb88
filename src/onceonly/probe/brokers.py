"""The probe of Kafka brokers: transactions as sinks use them, on a topic of the probe's own, and the grants for them.

Records are committed in that topic alone, which is deleted at the end. Of a topic that the user names, settings and
grants are read, and nothing is written to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka.client_settings import kafka_python_arguments
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import NoTopic, TopicClient
from onceonly.kafka.transactions import Transactions
from onceonly.probe import broker_limits, folders
from onceonly.probe.broker_limits import GRANTS, KEYLESS_ROWS, LARGE_ROWS, OLD_ROWS, REPLICAS, TIMEOUTS
from onceonly.probe.findings import Finding, Observation, Tallies, Tally, read_tallies
from onceonly.probe.transaction_trials import (
    ABORT,
    COMMIT,
    EXPIRY,
    FENCING,
    HANDED_ON,
    OPEN,
    PATIENCE_SECONDS,
    TRIAL_PARTITIONS,
    TransactionTrials,
    describe_error,
)

ON_OWN_TOPIC = (COMMIT, ABORT, OPEN, HANDED_ON, FENCING, EXPIRY)
ROWS = (LARGE_ROWS, OLD_ROWS, KEYLESS_ROWS)
PROMISES = (*ON_OWN_TOPIC, TIMEOUTS, *ROWS, REPLICAS, GRANTS)


@dataclass
class BrokerProbe:
    """One probe of a cluster.

    Args:
        topic: of the user; None: none is named.
        seconds: for which transactions are begun; each trial is made once at least.
        id_prefix: of the sinks' transactional ids.
        progress: is called with the seconds so far, and the number of the round.
    """

    connection: KafkaConnection
    topic: str | None
    seconds: float
    id_prefix: str
    progress: Callable[[float, int], None]

    def run(self) -> tuple[list[Finding], int]:
        """Try all promises, and return what was seen, and the rounds. The topic of the probe is deleted.

        Raises:
            NotCommitted: no broker answers.
            InvalidPipeline: there is no such topic, or the brokers refuse the credentials.
        """
        tallies = Tallies()
        with Transactions(kafka_python_arguments(self.connection)) as transactions:
            transactions.read_cluster_id()  # no table of failures where no broker answers
            self._require_topic()
            self._remove_leftovers()
            tallies.add(broker_limits.look_at_cluster(transactions))
            rounds = self._try_on_own_topic(transactions, tallies)
            if self.topic:
                tallies.add(broker_limits.look_at_topic(self.topic, transactions))
                tallies.add(broker_limits.look_at_settings(self.topic, transactions))
            tallies.add(broker_limits.look_at_grants(self.topic, self.connection, self.id_prefix, transactions))
        return make_findings(read_tallies(tallies.to_json())), rounds

    def _require_topic(self) -> None:
        """Refuse a topic that does not exist. One that this client may not describe is a matter of grants."""
        if not self.topic:
            return
        try:
            TopicClient(self.topic, self.connection).describe()
        except NoTopic:
            raise
        except InvalidPipeline:
            return

    def _try_on_own_topic(self, transactions: Transactions, tallies: Tallies) -> int:
        """Try transactions until the time is over, and return the rounds."""
        needs = ON_OWN_TOPIC if self.topic else (*ON_OWN_TOPIC, *ROWS, REPLICAS)
        try:
            with self._own_topic() as topic:
                if not self.topic:  # else its settings count, and not the brokers' defaults
                    tallies.add(broker_limits.look_at_topic(topic, transactions))
                trials = TransactionTrials(self.connection, topic, self.id_prefix, transactions)
                rounds = trials.run(self.seconds, self.progress, tallies)
                if not self.topic:
                    tallies.add(trials.try_rows())
                return rounds
        except _NoOwnTopic as error:
            tallies.add(Observation(promise.name, error=str(error)) for promise in needs)
            return 0

    @contextmanager
    def _own_topic(self) -> Iterator[str]:
        """Create the topic of the probe, with the brokers' defaults, and delete it after the block."""
        from confluent_kafka import KafkaException
        from confluent_kafka import admin as kafka_admin

        name = folders.make_name(datetime.now(UTC))
        new_topic: Any = kafka_admin.NewTopic  # type: ignore[attr-defined]
        try:
            with self._deleting(name):
                topics = [new_topic(name, TRIAL_PARTITIONS, -1)]
                creation = self._admin.create_topics(topics, request_timeout=PATIENCE_SECONDS)[name]
                creation.result(2 * PATIENCE_SECONDS)
                self._await_leaders(name)
        except (KafkaException, TimeoutError) as error:
            reason = describe_error(error, self.connection)
            raise _NoOwnTopic(f"the probe could not create a topic of its own: {reason}") from error
        try:
            yield name
        finally:
            self._delete_topics([name])

    @contextmanager
    def _deleting(self, name: str) -> Iterator[None]:
        """Delete the topic if the block fails: it may be there all the same."""
        try:
            yield
        except BaseException:
            with suppress(NotCommitted):  # where it could not be created, it mostly is not there
                self._delete_topics([name])
            raise

    def _await_leaders(self, topic: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            metadata = self._admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic]
            has_leaders = all(partition.leader >= 0 for partition in metadata.partitions.values())
            if metadata.error is None and len(metadata.partitions) == TRIAL_PARTITIONS and has_leaders:
                return
            time.sleep(0.1)

    def _remove_leftovers(self) -> None:
        """Delete the topics of probes that were killed."""
        names = TopicClient("", self.connection).list_names()
        self._delete_topics(folders.list_leftovers(names, datetime.now(UTC)))

    def _delete_topics(self, names: Sequence[str]) -> None:
        from confluent_kafka import KafkaException

        own_names = [folders.require_name(name) for name in names]
        if not own_names:
            return
        for name, future in self._admin.delete_topics(own_names, request_timeout=PATIENCE_SECONDS).items():
            try:
                future.result(2 * PATIENCE_SECONDS)
            except (KafkaException, TimeoutError) as error:
                raise NotCommitted(
                    f"topic '{name}' could not be removed.",
                    describe_error(error, self.connection),
                    "Delete it. The next probe also deletes it, once it is two hours old.",
                    code="probe-not-removed",
                ) from error

    @cached_property
    def _admin(self) -> Any:
        """One client for all requests: one that is not kept is ended with its requests."""
        return TopicClient("", self.connection).admin


class _NoOwnTopic(Exception):
    """No topic could be created."""


def make_findings(tallies: Mapping[str, Tally]) -> list[Finding]:
    findings = []
    for promise in PROMISES:
        tally = tallies.get(promise.name, Tally(errors=1, first_error="nothing was seen of it"))
        words = tally.describe()
        if promise is EXPIRY and tally.figures and not tally.breaches:
            words += f"; aborted within {max(tally.figures):.0f} s after its time was over"
        findings.append(Finding(promise, words, tally.verdict))
    return findings
