"""Scheduled on the table that the pipeline `flights` publishes: each of its commits starts a run of this DAG."""

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Asset, task

table = Asset("onceonly://lake/flights")

with DAG("flights_by_day", schedule=[table], start_date=datetime(2013, 1, 1), catchup=False, tags=["onceonly"]) as dag:

    @task
    def count(triggering_asset_events: Any) -> dict[str, int]:
        """Flights by day, of the checkpoints that started this run and all before."""
        from deltalake import DeltaTable, QueryBuilder

        from onceonly.settings import Settings

        for event in triggering_asset_events[table]:
            print(f"epoch {event.extra['epoch']} of {event.extra['pipeline']}: {event.extra['rows']} rows")
        flights = DeltaTable(Settings.from_env().locate("lake/flights"))
        found = QueryBuilder().register("flights", flights).execute("SELECT day, count(*) FROM flights GROUP BY day")
        days, counts = found.read_all().columns
        return {str(day.as_py()): count.as_py() for day, count in zip(days, counts, strict=True)}

    count()
