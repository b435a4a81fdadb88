"""The example's shop with broken records, and where each record has to be: known from what was produced alone."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
from confluent_kafka import Producer
from deltalake import DeltaTable
from integration.projects import kafka_writers
from integration.readers.kafka_reader import Record, committed, create_topic
from patience import PATIENCE
from schema_registry import FakeRegistry

from onceonly.kafka.airflow_connections import write_variable
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.definition import Pipeline
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = Path(__file__).parents[3]
START = datetime(2024, 1, 1, tzinfo=UTC)
CUSTOMERS = 40
SHARE = 50  # of so many orders one is garbage, and one more is refused by the transform
PARTITIONS = 3
NO_SUCH_ID = 999_999
DEAD = "shop-dead-letters"


def pipelines(suffix: str, most: int) -> tuple[Pipeline, Pipeline]:
    """Those of dags/shop.py on topics of their own, with small checkpoints."""
    from onceonly.runtime.pipeline_file import load

    shop, revenue = (load(f"dags/shop.py:{name}", ROOT) for name in ("shop", "revenue"))
    sources = [replace(source, topic=source.topic + suffix, max_records=most) for source in shop.sources]
    dead = replace(shop.sink("dead_letters"), topic=DEAD + suffix)
    sinks = [*(sink for sink in shop.sinks if sink.name != dead.name), dead]
    small = {"source": sources, "sinks": sinks, "max_bad": most}
    return replace(shop, transform="integration.projects.shop:tables", **small), revenue


def tables(batches: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """The example's own transform, by the names of its own topics."""
    from jobs import shop

    return shop.tables({topic.partition("-")[0]: batch for topic, batch in batches.items()})


def order(n: int) -> dict[str, Any]:
    placed = START + timedelta(minutes=7 * n)
    coupon = {"coupon": f"C{n}"} if n % 2 else {}  # the other half is written by the schema before coupons
    cents = -n if n % SHARE == 9 else 100 + n % 977
    return {"id": n, "customer": n % CUSTOMERS, "placed": placed, "cents": cents, **coupon}


def garbage(n: int, id: int) -> bytes:
    """Without a header, with an id that nobody knows, a header that is cut off, nothing, a value that is cut off."""
    kinds = (b"not avro", b"\0" + NO_SUCH_ID.to_bytes(4) + b"xyz", b"\0\0", b"", b"\0" + id.to_bytes(4) + b"\x80")
    return kinds[n // SHARE % len(kinds)]


def is_garbage(n: int) -> bool:
    return n % SHARE == 3


def change(n: int) -> dict[str, Any]:
    """Older ones of a customer may come later."""
    version = n if n // CUSTOMERS % 2 else n + 100
    return {"id": n % CUSTOMERS, "version": version, "name": f"name {n}", "city": None, "deleted": n % 9 == 0}


@dataclass(frozen=True)
class Shop:
    folder: Path
    broker: str
    registry: FakeRegistry
    suffix: str
    ids: tuple[int, int, int]  # of orders without coupons, with them, of customers

    @classmethod
    def make(cls, folder: Path, broker: str, registry: FakeRegistry, suffix: str | None = None) -> Shop:
        """By default with topics that no other test uses."""
        suffix = f"-{uuid.uuid4().hex[:8]}" if suffix is None else suffix
        for name in ("orders", "customers", DEAD):
            create_topic(broker, name + suffix, PARTITIONS)
        without = {**schema("order"), "fields": schema("order")["fields"][:-1]}
        written = (("orders", without), ("orders", schema("order")), ("customers", schema("customer")))
        ids = tuple(registry.register(f"{topic}{suffix}-value", text) for topic, text in written)
        made = cls(folder, broker, registry, suffix, ids)  # type: ignore[arg-type]
        StateTable.make(made.settings.state)
        return made

    @property
    def env(self) -> dict[str, str]:
        return {
            "ONCEONLY_HOME": str(self.folder),
            "ONCEONLY_PROJECT": str(ROOT),
            "ONCEONLY_KAFKA_BOOTSTRAP": self.broker,
            **kafka_writers.environment(),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src"), str(ROOT)]),
            **write_variable("registry_default", {"url": self.registry.url}),
        }

    @property
    def settings(self) -> Settings:
        return Settings.from_env(self.env)

    def produce(self, numbers: Iterable[int]) -> None:
        """An order and a change of a customer of each number, keyed by it."""
        producer = Producer({"bootstrap.servers": self.broker, "log_level": 0})
        for n in numbers:
            value = (
                garbage(n, self.ids[n % 2]) if is_garbage(n) else avro(self.ids[n % 2], self.writers[n % 2], order(n))
            )
            producer.produce(f"orders{self.suffix}", value, str(n), n % PARTITIONS, headers=[("from", b"shop")])
            value = garbage(n, self.ids[2]) if is_garbage(n + 20) else avro(self.ids[2], self.writers[2], change(n))
            producer.produce(f"customers{self.suffix}", value, str(n), n * 7 % PARTITIONS)
        assert producer.flush(PATIENCE) == 0

    @property
    def writers(self) -> list[Any]:
        return [fastavro.parse_schema(json.loads(self.registry.schemas[id]["schema"])) for id in self.ids]

    # ---- what independent readers find, beside what was produced

    def table(self, name: str) -> list[dict[str, Any]]:
        return list(DeltaTable(str(self.folder / "lake" / name)).to_pyarrow_table().to_pylist())

    def check_truth(self, numbers: Iterable[int]) -> str:
        """Every record once where it belongs, and nowhere else; returns what was counted."""
        numbers = list(numbers)
        good = [order(n) for n in numbers if not is_garbage(n) and order(n)["cents"] >= 0]
        found = self.table("orders")
        assert sorted(map(_order, found)) == sorted(map(_order, good))
        assert all(row["day"] == row["placed"].date() for row in found)
        newest = self.newest(numbers)
        customers = self.table("customers")
        assert sorted(map(_items, customers)) == sorted(map(_items, newest.values()))
        assert self.revenue() == amounts(good)
        letters = self.check_letters(numbers)
        return f"{len(found)} orders, {len(customers)} customers, {letters} dead letters, {len(amounts(good))} days"

    def newest(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        newest: dict[int, dict[str, Any]] = {}
        for each in (change(n) for n in numbers if not is_garbage(n + 20)):
            if each["version"] > newest.get(each["id"], {"version": -1})["version"]:
                newest[each["id"]] = each
        return newest

    def revenue(self) -> dict[date, tuple[int, int]]:
        rows = self.table("revenue")
        assert len({row["day"] for row in rows}) == len(rows)
        return {row["day"]: (row["orders"], row["cents"]) for row in rows}

    def check_letters(self, numbers: list[int]) -> int:
        """The broken records themselves, each once, and no others."""
        topics = {name: f"{name}{self.suffix}" for name in ("orders", "customers")}
        wanted = Counter((topics["orders"], n) for n in numbers if is_garbage(n) or order(n)["cents"] < 0)
        wanted += Counter((topics["customers"], n) for n in numbers if is_garbage(n + 20))
        read = {(r.topic, r.partition, r.offset): r for r in committed(self.broker, *topics.values())}
        letters = [(letter, place(letter)) for letter in committed(self.broker, DEAD + self.suffix)]
        assert Counter((where[0], int(letter.key or b"")) for letter, where in letters) == wanted
        for letter, where in letters:
            assert (letter.key, letter.value) == (read[where].key, read[where].value)
            assert letter.headers[: len(read[where].headers)] == read[where].headers
        return len(letters)

    def nothing_is_open(self) -> None:
        with Transactions({"bootstrap_servers": self.broker}) as known:
            assert known.list_open(f".*-{StateTable(self.settings.state).id}-.*") == []


def amounts(orders: list[dict[str, Any]]) -> dict[date, tuple[int, int]]:
    """Day -> orders, cents."""
    found: dict[date, tuple[int, int]] = {}
    for each in orders:
        count, cents = found.get(each["placed"].date(), (0, 0))
        found[each["placed"].date()] = (count + 1, cents + each["cents"])
    return found


def place(letter: Record) -> tuple[str, int, int]:
    said = {name: (value or b"").decode() for name, value in letter.headers}
    return said["onceonly.topic"], int(said["onceonly.partition"]), int(said["onceonly.offset"])


def _order(row: dict[str, Any]) -> Any:
    return row["id"], row["customer"], row["placed"].timestamp(), row["cents"], row.get("coupon") or ""


def _items(row: dict[str, Any]) -> Any:
    return row["id"], row["version"], row["name"], row["city"] or "", row["deleted"]


def schema(name: str) -> Any:
    return json.loads((ROOT / "schemas" / f"{name}.v1.avsc").read_text())


def avro(id: int, schema: Any, value: dict[str, Any]) -> bytes:
    out = BytesIO(b"\0" + id.to_bytes(4))
    out.seek(5)
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()
