"""docs/how-to/erase.md as a reader follows it: then the person is in no file and no topic, and nothing comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from deltalake import DeltaTable, QueryBuilder
from integration.programs import page
from patience import PATIENCE

from onceonly.dev.services import Services

pytestmark = [pytest.mark.integration, pytest.mark.heavy]

PAGE = page.ROOT / "docs" / "how-to" / "erase.md"
BLOCKS = page.blocks("how-to/erase.md")
TOPICS = ("customers", "mails")
PIPELINE = "dags/pipelines/customers.py:customers"
SMALL = 1_000  # bytes of a record of mails, until the topic takes larger ones
LOG_OF_BROKER = "services/kafka/data"  # its bytes stay until a segment is complete, as the page says
CUT = 30  # characters of a text that statistics of a Delta log keep in any case


def suite(column: str, regex: str) -> str:
    expectation = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": column, "regex": regex}}
    return json.dumps({"name": "customers", "expectations": [expectation]})


@dataclass
class Shop:
    """The project of the page, with a person who is in all that it writes."""

    folder: Path
    broker: str
    person: str = field(default_factory=lambda: f"person-{uuid.uuid4().hex}")

    def make(self) -> None:
        pipeline, transform = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        files = {
            "dags/pipelines/customers.py": pipeline,
            "jobs/customers.py": transform,
            "schemas/customer.ddl": "id STRING, mail STRING, orders BIGINT",
            "schemas/customers.expectations.json": suite("mail", "@example.org$"),
        }
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        source, mails = NewTopic(TOPICS[0], 2), NewTopic(TOPICS[1], 1, config={"max.message.bytes": str(SMALL)})
        admin = self.admin
        for made in admin.create_topics([source, mails]).values():
            made.result()

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker})

    def send(self, *records: tuple[str, str | None]) -> None:
        producer = Producer({"bootstrap.servers": self.broker})
        for id, value in records:
            producer.produce(TOPICS[0], value, key=id)
        assert producer.flush(PATIENCE) == 0

    def take_large_mails(self) -> None:
        entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("TOPIC", TOPICS[1], incremental_configs=[entry])
        admin = self.admin
        for altered in admin.incremental_alter_configs([resource]).values():
            altered.result()

    # ---- commands

    def shell(self, text: str) -> tuple[int, str]:
        """Run commands in the project; returns the exit code of the last one, and what all have printed."""
        environment = {**page.environment(), "person": self.person}
        shell = subprocess.Popen(
            ["bash", "-c", text],
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = shell.communicate(timeout=4 * PATIENCE)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        return shell.returncode, output

    def run(self, code: int = 0) -> str:
        exit_code, output = self.shell(f"onceonly run {PIPELINE}")
        assert exit_code == code, output
        return output

    def decide(self, command: str, epoch: int) -> None:
        described = f"onceonly describe customers {epoch} --json"
        seen = "python -c 'import json, sys; print(json.load(sys.stdin)[\"seen\"])'"
        code, output = self.shell(
            f'onceonly {command} customers {epoch} --reason test --seen "$({described} | {seen})"'
        )
        assert code == 0, output

    # ---- where the person is

    def places(self) -> set[str]:
        """Return the files of the project, and the topics, that hold the person, or what a log may keep of the name."""
        found = {name for name, content in self.contents() if self.person[:CUT].encode() in content}
        return found | {topic for topic in TOPICS if self.person.encode() in self.read(topic)}

    def contents(self) -> Iterator[tuple[str, bytes]]:
        for file in self.folder.rglob("*"):
            name = str(file.relative_to(self.folder))
            if not file.is_file() or LOG_OF_BROKER in name:
                continue
            content = name.encode() + file.read_bytes()
            if content.startswith(b"PAR1", len(name.encode())):
                content += repr(pq.ParquetFile(file).read().to_pylist()).encode()
            yield name, content

    def read(self, topic: str) -> bytes:
        """Return all that a plain consumer finds from the beginning, also what was aborted."""
        settings = {"bootstrap.servers": self.broker, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
        settings |= {"isolation.level": "read_uncommitted", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        partitions = list(self.admin.list_topics(topic).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        content, ended = b"", set()
        while len(ended) < len(partitions):
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error():
                ended.add(message.partition())
            else:
                content += repr((message.key(), message.value(), message.headers())).encode()
        consumer.close()
        return content


def others(count: int) -> list[tuple[str, str]]:
    return [customer(f"c{number}") for number in range(count)]


def customer(id: str, mail: str = "", at: str = "example.org") -> tuple[str, str]:
    return id, json.dumps({"id": id, "mail": f"{mail or id}@{at}", "orders": 1})


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    services = Services(tmp_path / "shop" / ".onceonly", port=0, spark_port=0)
    try:
        shop = Shop(tmp_path / "shop", services.up(spark=True).bootstrap)
        shop.make()
        yield shop
    finally:
        services.down()


def fill(shop: Shop) -> None:
    """Published, held and approved, failed, held and aborted: the person is in all of these."""
    shop.send(*others(30), customer(shop.person), (shop.person, f'{{"id": "{shop.person}", "orders": "many"}}'))
    shop.run()
    shop.send(customer(shop.person, at="elsewhere"), *others(3))
    shop.run(4)
    shop.decide("approve", 2)
    shop.send(customer(shop.person, mail="x" * SMALL, at="elsewhere"), *others(2))
    assert shop.person in shop.run(2), "the error quotes the key"
    shop.take_large_mails()
    shop.run(4)
    shop.decide("abort", 3)
    (shop.folder / "schemas" / "customers.expectations.json").write_text(suite("id", "."))


def test_the_person_is_nowhere_and_stays_away(shop: Shop) -> None:
    fill(shop)
    before = shop.places()
    for part in ("appstate", "docs", "lake/.archive.staged", "lake/archive", "lake/customers/_delta_log", "spool"):
        assert any(part in name for name in before), (part, before)
    assert {*TOPICS} < before
    assert not any(name.startswith(".onceonly/state") for name in before), "the state table quotes no row"

    check_blocks(shop)
    assert shop.places() == set()

    shop.send(*others(5))
    shop.run()
    code, output = shop.shell(f"onceonly recover && onceonly repair {PIPELINE} customers --dry-run && onceonly sweep")
    assert (code, "lacks no rows" in output) == (0, True), output
    assert shop.places() == set()
    assert orders(shop) == 30 + 3 + 2 + 5


def check_blocks(shop: Shop) -> None:
    """Run the blocks of the page, each in the project, and compare what each prints with what the page shows."""
    for block in BLOCKS:
        code, output = shop.shell(f"set -eo pipefail\n{block.commands}")
        assert code == 0, f"{block.commands}\nprinted:\n{output}"
        assert block.shown is None or page.same(block.shown, output), f"{block.commands}\nprinted:\n{output}"


def orders(shop: Shop) -> Any:
    query = QueryBuilder().register("customers", DeltaTable(str(shop.folder / ".onceonly/lake/customers")))
    return query.execute("SELECT sum(orders) AS orders FROM customers").read_all()["orders"][0].as_py()
