"""The goals, in one place: each names the measure that shows it. None is moved to fit what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A measure's median should be at most (or at least) `bound`.

    Args:
        name, measure: of the result, and of its row.
    """

    what: str
    name: str
    measure: str
    bound: float
    at_least: bool = False
    unit: str = ""

    def met(self, found: float) -> bool:
        return found >= self.bound if self.at_least else found <= self.bound

    def missed_by(self, found: float) -> float:
        """As a share of the goal."""
        return (self.bound - found if self.at_least else found - self.bound) / self.bound

    @property
    def text(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g} {self.unit}".strip()


def of(name: str, row: dict[str, Any]) -> Goal | None:
    return next((goal for goal in GOALS if (goal.name, goal.measure) == (name, row["measure"])), None)


CPU = ", CPU"  # after the name of a side
WARM_RUN = "DAG run by a warm Spark Connect server"
DEFAULT, TUNED = "Spark, default settings", "Spark, tuned"
CHAINED = "chained, 20,000 epochs ÷ chained, 10 epochs"
INTERVAL = "interval, 20,000 epochs ÷ interval, 10 epochs"
SYNCED = "whole checkpoint, fsync ÷ whole checkpoint, no fsync"
BARE = "publish ÷ open and append by delta-rs, 400,000 files"
LOOK, RECORDED = "a transaction: look, end, see its marker", "a transaction, with the rows of the state table"
GOALS = [
    Goal("one checkpoint on fakes, with fsync", "state_table", "one checkpoint", 60, unit="ms"),
    Goal("64 pipelines at once: failures", "pipelines", "failures of 64 at once", 0),
    Goal("64 pipelines at once: worst ÷ median", "pipelines", "worst ÷ median of 64 at once", 3),
    Goal("64 at once ÷ one: throughput", "pipelines", "throughput of 64 at once ÷ of 1", 1, True),
    Goal("a checkpoint beside 1,000 pipelines ÷ alone", "many_pipelines", "beside 1,000 pipelines ÷ alone", 1.5),
    Goal("status of 1,000 pipelines", "many_pipelines", "status of 1,000 pipelines", 1, unit="s"),
    Goal("recovery of them, nothing to do", "many_pipelines", "recovery of nothing, 1,000 pipelines", 5, unit="s"),
    Goal("recovery of 1,000 pending checkpoints", "recovery", "1,000 pending checkpoints", 60, unit="s"),
    Goal("rehearse and publish into 400,000 files ÷ delta-rs alone", "targets", BARE, 1.3),
    Goal("a commit of 10,000 files: memory", "targets", "memory of a commit of 10,000 files", 300, unit="MB"),
    Goal("cold `onceonly run` of 100 rows", "cold_start", "cold run", 6, unit="s"),
    Goal("the same, with a warm Spark Connect server", "cold_start", "warm run", 1.5, unit="s"),
    Goal("`make demo` after set-up", "demo", "make demo", 120, unit="s"),
    Goal("Kafka → Kafka: Flink ÷ Onceonly, both warm", "flink", "Flink, tuned, warm ÷ Onceonly, warm", 2, True),
    Goal("… at Flink's steady rate", "flink", "Flink, steady ÷ Onceonly, warm", 1.2, True),
    Goal("… of 10 M records: whole", "flink_large", "Flink, tuned, warm ÷ Onceonly, warm", 2, True),
    Goal("… of 10 M records: steady", "flink_large", "Flink, steady ÷ Onceonly, warm", 1.2, True),
    Goal("Kafka → Kafka ÷ Spark's at-least-once sink, tuned", "kafka_sink", f"Onceonly ÷ {TUNED}", 0.9),
    Goal("… its CPU", "kafka_sink", f"Onceonly{CPU} ÷ {TUNED}{CPU}", 0.85),
    Goal("… of 1 M records", "growth", f"Kafka → Kafka ÷ {TUNED}, 1,000,000", 1),
    Goal("… of 10 M records", "growth", f"Kafka → Kafka ÷ {TUNED}, 10,000,000", 0.85),
    Goal("… of 30 M records", "growth", f"Kafka → Kafka ÷ {TUNED}, 30,000,000", 0.85),
    Goal("Kafka → Delta ÷ a plain append, tuned", "checkpoint", f"Onceonly ÷ {TUNED}", 0.85),
    Goal("Kafka → Delta ÷ Structured Streaming", "checkpoint", "Onceonly ÷ Structured Streaming, tuned", 0.65),
    Goal("Kafka transaction: look, end, see the marker", "kafka_sink", LOOK, 5, unit="ms"),
    Goal("… with the rows of the state table", "kafka_sink", RECORDED, 12, unit="ms"),
    Goal("Kafka → Parquet ÷ a plain append, tuned", "files", f"Onceonly ÷ {TUNED}", 0.95),
    Goal("10 M rows into PostgreSQL ÷ Spark's JDBC writer", "postgres", f"Onceonly ÷ {DEFAULT}", 0.5),
    Goal("… tuned", "postgres", f"Onceonly ÷ {TUNED}", 0.5),
    Goal("one checkpoint with two sinks ÷ two pipelines", "second_sink", "one checkpoint ÷ two pipelines", 1),
    Goal("a checkpoint on 20,000 epochs ÷ on 10, chained", "history", CHAINED, 1.5),
    Goal("… of intervals", "history", INTERVAL, 1.5),
    Goal("the state table with fsync ÷ without", "fsync", "state table, fsync ÷ state table, no fsync", 1.5),
    Goal("a whole checkpoint with fsync ÷ without", "fsync", SYNCED, 1.1),
    Goal("1,000 keys changed, 1 M held ÷ 10,000 held", "keys", "1,000,000 held ÷ 10,000 held", 2),
    Goal("a page, 10,000 checkpoints (the slowest kind)", "pages", "slowest kind of page", 0.3, unit="s"),
    Goal("a DAG run of 6,000 rows", "airflow_overhead", "DAG run", 13, unit="s"),
    Goal("… less its Spark job", "airflow_overhead", "DAG run less Spark", 4, unit="s"),
    Goal("… its commit task", "airflow_overhead", "commit task", 1, unit="s"),
    Goal("… by a warm Spark Connect server", "airflow_overhead", WARM_RUN, 6, unit="s"),
    Goal("memory of the driver, 30 M records ÷ 3 M", "memory", "driver, 30,000,000 ÷ driver, 3,000,000", 1.1),
    Goal("… of an executor", "memory", "executor, 30,000,000 ÷ executor, 3,000,000", 1.1),
    Goal("… of the process of the stage", "memory", "Python, 30,000,000 ÷ Python, 3,000,000", 1.1),
    Goal("import of a DAG file, beyond Airflow (the slowest)", "dag_import", "slowest DAG file", 100, unit="ms"),
]  # fmt: skip
