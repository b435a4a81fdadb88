"""Tables by their names, looked up by the Spark of a connection: through Spark Connect, else in a child process.

A catalog is asked and no rows are read, so nothing runs on a cluster for it: the child is its own master.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline.catalogs import Found
from onceonly.runtime import child, process
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.target import Target
from onceonly.settings import Settings
from onceonly.spark import catalog, jvm
from onceonly.views.descriptions import JOB_LINE_PREFIX


def find(spark: Target, names: Iterable[str]) -> Mapping[str, Found]:
    """Return where these tables are now, by name.

    Raises:
        InvalidPipeline, NotCommitted: see `spark.catalog.find`.
    """
    settings = Settings.from_env()
    if spark.remote:
        return catalog.find(LiveServices(replace(settings, spark_remote=spark.remote)).spark(), names)
    env = jvm.environment(settings.jars, records=0)
    with child.start_program(Target("local[1]", conf=spark.conf), "tables", sorted(names), settings, env) as job:
        lines = job.communicate()[0].splitlines()
    answers = [line.removeprefix(JOB_LINE_PREFIX) for line in lines if line.startswith(JOB_LINE_PREFIX)]
    if job.returncode == 0 and answers:
        return {name: Found(**table) for name, table in json.loads(answers[-1]).items()}
    kind = InvalidPipeline if job.returncode == InvalidPipeline.exit_code else NotCommitted
    raise kind(
        f"it is not known where these tables are: {', '.join(sorted(names))}.",
        "\n".join(process.last_telling_lines(lines)),
        "Nothing was planned.",
    )
