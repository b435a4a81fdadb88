"""The probe of real brokers: as they are, with limits that are too small, and with grants that are missing."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourcePatternType
from confluent_kafka.admin import ResourceType as Kind
from integration.readers.kafka_reader import new_topic, until
from integration.services.guarded_broker import PASSWORD, GuardedBroker, make_acl, on_ids, on_topic
from integration.services.own_broker import running
from interruptible import CLI
from patience import PATIENCE

from onceonly.cli import main
from onceonly.dev.services import machine
from onceonly.errors import NotCommitted
from onceonly.kafka.airflow_connections import variable_name
from onceonly.kafka.transactions import Transactions
from onceonly.probe import brokers, folders, transaction_trials
from onceonly.probe.transaction_trials import TransactionTrials

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PROMISES = {promise.name for promise in brokers.PROMISES}
ALL = "all_granted"
USERS = (ALL, "probing", "no_grant")


class StrictBroker(GuardedBroker):
    """Limits that are too small for sinks."""

    def properties(self, port: int) -> str:
        limits = ["transaction.max.timeout.ms=60000", "message.max.bytes=100000", "log.cleanup.policy=compact"]
        return "\n".join([super().properties(port), *limits, "log.message.timestamp.before.max.ms=3600000", ""])


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictBroker]:
    with running(StrictBroker(tmp_path_factory.mktemp("strict"), USERS)) as strict:
        yield strict


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))


def probe(url: str, *args: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main, ["probe", url, "--seconds", "0", "--json", *args])
    assert PASSWORD not in result.output
    report = json.loads(result.stdout)
    assert "promises" in report, report
    print(url, result.exit_code)
    for finding in report["promises"]:
        print(f"  {finding['promise']:<24}{finding['verdict']:<20}{finding['seen']}")
    return result.exit_code, report


def with_verdict(report: dict[str, Any], verdict: str) -> set[str]:
    return {finding["promise"] for finding in report["promises"] if finding["verdict"] == verdict}


def topics_of_probes(address: str) -> list[str]:
    names = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=PATIENCE).topics
    return [name for name in names if name.startswith(folders.FOLDER_PREFIX)]


def test_a_broker_keeps_every_promise_and_nothing_stays(broker: str) -> None:
    code, report = probe(f"kafka://{broker}/{new_topic(broker)}")
    assert (code, with_verdict(report, "kept")) == (0, PROMISES)
    until(lambda: topics_of_probes(broker) == [], what="the topic is deleted")


def test_limits_that_refuse_rows_are_named(strict: StrictBroker) -> None:
    code, report = probe(f"kafka://{strict.open_address}")
    refusing = {"transaction-timeouts", "large-rows", "old-rows", "rows-without-key"}
    assert (code, with_verdict(report, "broken")) == (8, refusing)
    assert with_verdict(report, "kept") == PROMISES - refusing


def test_settings_of_a_topic_are_looked_at(strict: StrictBroker) -> None:
    code, report = probe(f"kafka://{strict.open_address}/{new_topic(strict.open_address)}")
    assert code == 8
    seen = {finding["promise"]: finding["seen"] for finding in report["promises"]}
    assert "max.message.bytes is 100000" in seen["large-rows"] and "compact" in seen["rows-without-key"]
    assert "3600000" in seen["old-rows"]


@pytest.fixture
def topic(strict: StrictBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic on which users have grants of their own, each by a connection of the user's name."""
    for user in USERS:
        monkeypatch.setenv(variable_name(user), json.dumps({"conn_type": "kafka", "extra": strict.connection(user)}))
    name, operations = new_topic(strict.open_address), (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.READ)
    for user in (ALL, "probing"):
        strict.grant(*on_topic(user, name, *operations))
        strict.grant(*on_ids(user, "onceonly-", AclOperation.WRITE, AclOperation.DESCRIBE))
    strict.grant(*on_topic("no_grant", name, AclOperation.DESCRIBE))
    return name


def test_missing_grants_are_named(strict: StrictBroker, topic: str) -> None:
    until(lambda: "grants" in with_verdict(probe(f"kafka://{ALL}/{topic}")[1], "kept"), what="it is granted")
    code, report = probe(f"kafka://no_grant/{topic}")
    assert code == 8 and "grants" in with_verdict(report, "broken")
    seen = next(finding["seen"] for finding in report["promises"] if finding["promise"] == "grants")
    assert "TransactionalId prefix 'onceonly-'" in seen and "Read, Write" in seen
    assert {promise.name for promise in brokers.ON_OWN_TOPIC} <= with_verdict(report, "could not be tried")
    assert "grants" in with_verdict(probe(f"kafka://{ALL}/{topic}", "--id-prefix", "team")[1], "broken")


def test_documented_grants_are_enough(strict: StrictBroker, topic: str) -> None:
    operations = ("CREATE", "DELETE", "DESCRIBE", "READ", "WRITE", "DESCRIBE_CONFIGS")
    for operation in operations:
        grant = getattr(AclOperation, operation)
        strict.grant(make_acl(Kind.TOPIC, folders.FOLDER_PREFIX, ResourcePatternType.PREFIXED, "probing", grant))
    tried = {promise.name for promise in brokers.ON_OWN_TOPIC}
    until(lambda: tried <= with_verdict(probe(f"kafka://probing/{topic}")[1], "kept"), what="it is granted")
    until(lambda: topics_of_probes(strict.open_address) == [], what="the topics are deleted")


def test_readers_that_see_too_much_are_caught(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_trials, "ISOLATION", "read_uncommitted")
    code, report = probe(f"kafka://{broker}")
    seeing = {"transaction-abort", "open-transactions", "fencing", "expiry"}
    assert (code, with_verdict(report, "broken")) == (8, seeing)


def test_coordinators_that_fence_nobody_are_caught(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transactions, "fence", lambda self, id: None)
    code, report = probe(f"kafka://{broker}")
    assert (code, with_verdict(report, "broken")) == (8, {"fencing"})


def test_brokers_that_let_nothing_expire_are_caught(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = TransactionTrials._write
    monkeypatch.setattr(
        TransactionTrials, "_write", lambda self, id, partition=0, timeout=None: write(self, id, partition)
    )
    monkeypatch.setattr(transaction_trials, "EXPIRY_PATIENCE_SECONDS", 2.0)
    code, report = probe(f"kafka://{broker}")
    assert (code, with_verdict(report, "broken")) == (8, {"expiry"})


def test_what_a_failed_trial_leaves_open_holds_up_no_reader(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next trial would accuse the brokers of losing a committed transaction."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotCommitted("nothing was sent.")

    monkeypatch.setattr(Transactions, "end", refuse)
    seconds, report = 4, {"rounds": 0}
    while report["rounds"] < 2:  # of which the first fails, and the second reads behind it
        code, report = probe(f"kafka://{broker}", "--seconds", str(seconds))
        assert (code, with_verdict(report, "broken")) == (0, set())
        assert with_verdict(report, "could not be tried") == {"ending-by-another"}
        seconds *= 3


def test_brokers_are_not_probed_from_spark(broker: str) -> None:
    result = CliRunner().invoke(main, ["probe", f"kafka://{broker}", "--from", "spark", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (2, "options-conflict")


def test_a_topic_that_does_not_exist_is_refused(broker: str) -> None:
    result = CliRunner().invoke(main, ["probe", f"kafka://{broker}/no-such-topic", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (2, "topic-missing")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_probe_that_is_ended_deletes_its_topic(strict: StrictBroker, number: signal.Signals) -> None:
    url = f"kafka://{strict.open_address}"
    command = [*CLI, "probe", url, "--seconds", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until(lambda: topics_of_probes(strict.open_address) != [], what="the topic is there")
        process.send_signal(number)
        print(process.communicate(timeout=PATIENCE)[0].decode())
    assert process.returncode == 130
    until(lambda: topics_of_probes(strict.open_address) == [], what="the topic is deleted")


def test_topics_of_killed_probes_are_deleted(broker: str) -> None:
    old, new = (folders.make_name(datetime.now(UTC) - timedelta(hours=hours)) for hours in (3, 1))
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in (old, new)]).values():
        future.result(PATIENCE)
    until(lambda: old in topics_of_probes(broker), what="the topic is there")
    probe(f"kafka://{broker}")
    until(lambda: topics_of_probes(broker) == [new], what="the older one is deleted")
    for future in admin.delete_topics([new]).values():
        future.result(PATIENCE)


def test_brokers_that_do_not_answer_are_no_broken_promise() -> None:
    address = f"127.0.0.1:{machine.free_port()}"
    result = CliRunner().invoke(main, ["probe", f"kafka://{address}", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (1, "kafka-unreachable")
