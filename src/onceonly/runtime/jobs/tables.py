"""Says, for a plan, where tables are. Arguments: their NAMES."""

import sys

from onceonly.runtime.spark_job import tables

sys.exit(tables(sys.argv[1:]))
