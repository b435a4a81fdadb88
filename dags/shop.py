"""A shop: orders and what changes about its customers become two tables, what is broken becomes dead letters, and the
revenue of each day follows the table of orders (docs/how-to/shop.md).
"""

from datetime import datetime

from onceonly import DeltaSink, DeltaSource, KafkaSink, KafkaSource, Merge, Pipeline, StateSink
from onceonly.airflow import checkpoint_dag, inlets


def registered(topic: str, schema: str) -> KafkaSource:
    """Avro with schema ids; a record that has none, or does not fit its schema, becomes a dead letter."""
    return KafkaSource(
        topic, "avro", schema, max_records=50_000, registry="registry_default", on_bad_record="dead_letter"
    )


shop = Pipeline(
    name="shop",
    source=[registered("orders", "schemas/order.v1.avsc"), registered("customers", "schemas/customer.v1.avsc")],
    transform="jobs.shop:tables",
    sinks=[
        DeltaSink("orders", path="lake/orders", partition_by=["day"]),
        DeltaSink("customers", path="lake/customers", merge=Merge(["id"], order_by=["version"], deletes="deleted")),
    ],
    dead_letters=KafkaSink(name="dead_letters", topic="shop-dead-letters"),
    max_bad=500,  # more of them in one checkpoint, and nothing is published
)
revenue = Pipeline(
    name="revenue",
    source=DeltaSource("lake/orders"),
    transform="jobs.shop:revenue",
    sinks=[
        DeltaSink("revenue", path="lake/revenue", merge=Merge(["day"], order_by=["orders"])),
        StateSink("totals", schema="day DATE, orders BIGINT, cents BIGINT", key=["day"]),
    ],
    after=["shop"],
)
shop_dag = checkpoint_dag(shop, schedule=None, start_date=datetime(2024, 1, 1))
revenue_dag = checkpoint_dag(revenue, schedule=inlets(revenue), start_date=datetime(2024, 1, 1))
