"""Run by PyFlink in an environment of its own: Kafka → Kafka exactly once, job after job in one JVM.

Arguments: BOOTSTRAP SOURCE JAR PARALLELISM SETTINGS (JSON: fetch, produce, flink). Each line of stdin, "TARGET PREFIX",
is a job; its answer is "SECONDS …", those of the job alone.
"""

import json
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

bootstrap, source, jar, parallelism, chosen = sys.argv[1:]
more = json.loads(chosen)
table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
settings = {"pipeline.jars": f"file://{jar}", "parallelism.default": parallelism, **more["flink"]}
for key, value in settings.items():
    table.get_config().set(key, value)
formats = "'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY'"
common = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{bootstrap}', {formats}"


def properties(settings):
    return "".join(f", 'properties.{key}' = '{value}'" for key, value in settings.items())


read = f"{common}, 'topic' = '{source}', 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset'"
table.execute_sql(f"CREATE TABLE read_from (k BYTES, v BYTES) WITH ({read}{properties(more['fetch'])})")
for line in sys.stdin:
    target, prefix = line.split()
    write = (
        f"{common}, 'topic' = '{target}', 'sink.delivery-guarantee' = 'exactly-once', "
        f"'sink.transactional-id-prefix' = '{prefix}', 'properties.transaction.timeout.ms' = '600000'"
    )
    started = time.perf_counter()
    table.execute_sql(f"CREATE TABLE to_{prefix} (k BYTES, v BYTES) WITH ({write}{properties(more['produce'])})")
    table.execute_sql(f"INSERT INTO to_{prefix} SELECT k, v FROM read_from").wait()
    print(f"SECONDS {time.perf_counter() - started:.3f}", flush=True)
