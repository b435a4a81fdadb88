"""For the trials alone: every minute a run, with and without catching up after the scheduler was away."""

import os
from datetime import datetime, timedelta

from onceonly.airflow import checkpoint_dag
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource

MINUTE = timedelta(minutes=1)
START = datetime.fromisoformat(os.environ.get("ONCEONLY_TRIAL_START", "2013-01-01T00:00:00+00:00"))

outage_caught_up = Pipeline(
    name="outage_caught_up",
    mode="interval",
    source=KafkaSource(topic="minutes"),
    transform="trials.minutes:numbers",
    sinks=[DeltaSink("outage_caught_up", path="lake/outage_caught_up")],
)
caught_up = checkpoint_dag(outage_caught_up, schedule=MINUTE, start_date=START)
outage_left_out = Pipeline(
    name="outage_left_out",
    mode="interval",
    source=KafkaSource(topic="flights"),  # of 2013: it has no records in any of these minutes
    transform="trials.minutes:numbers",
    sinks=[DeltaSink("outage_left_out", path="lake/outage_left_out")],
)
left_out = checkpoint_dag(outage_left_out, schedule=MINUTE, start_date=START, catchup=False)
