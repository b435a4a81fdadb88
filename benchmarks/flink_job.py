"""Run by PyFlink in an environment of its own: Kafka → Kafka exactly once; prints the seconds of the job alone.

Arguments: BOOTSTRAP SOURCE TARGET JAR PREFIX.
"""

import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

bootstrap, source, target, jar, prefix = sys.argv[1:]
table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
settings = {
    "pipeline.jars": f"file://{jar}",
    "parallelism.default": "2",
    "execution.checkpointing.interval": "5s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
}
for key, value in settings.items():
    table.get_config().set(key, value)
formats = "'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY'"
common = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{bootstrap}', {formats}"
read = f"{common}, 'topic' = '{source}', 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset'"
write = (
    f"{common}, 'topic' = '{target}', 'sink.delivery-guarantee' = 'exactly-once', "
    f"'sink.transactional-id-prefix' = '{prefix}', 'properties.transaction.timeout.ms' = '600000'"
)
table.execute_sql(f"CREATE TABLE read_from (k BYTES, v BYTES) WITH ({read})")
table.execute_sql(f"CREATE TABLE write_to (k BYTES, v BYTES) WITH ({write})")
started = time.perf_counter()
table.execute_sql("INSERT INTO write_to SELECT k, v FROM read_from").wait()
print(f"SECONDS {time.perf_counter() - started:.3f}")
