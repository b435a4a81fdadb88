"""A gate task's examination on a Spark master, in a process of its own: a session belongs to the whole process."""

import json
import os
import sys
from pathlib import Path

from onceonly.airflow.connections import GateServices
from onceonly.runtime.live_services import open_coordinator
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.settings import Settings

_, _, name, epoch = sys.argv[1:]
jars = {"ONCEONLY_JARS": str(Path(__file__).parents[3] / ".jars")}
parts = GateServices(Settings.from_env(os.environ | jars), target=SparkConnection("local[1]"))
judged = open_coordinator(parts).gate(name, int(epoch), "test")
spark = parts.spark()
print(json.dumps({"master": spark.sparkContext.master, "verdict": judged.verdict}))
spark.stop()
