"""spark-submit's entry: stage one checkpoint. Arguments: PIPELINE EPOCH OWNER, and on the cluster REPORT SINCE
[CONNECTIONS]."""

import sys

from onceonly.runtime.spark_job import stage

sys.exit(stage(sys.argv[1:]))
