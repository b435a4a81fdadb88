"""Runs SQL in a Spark of its own: settings as JSON, then the statements. Prints the rows of the last one as JSON."""

import json
import sys

from onceonly.settings import Settings
from onceonly.spark.session import session

settings, *statements = sys.argv[1:]
spark = session(Settings.from_env(), more=json.loads(settings))
rows = [spark.sql(statement) for statement in statements][-1].collect()
print("ROWS", json.dumps([list(row) for row in rows], default=str))
spark.stop()
