"""spark-submit's entry: stage one checkpoint. Arguments: PIPELINE EPOCH OWNER, and on the cluster REPORT SINCE."""

import sys

from onceonly.sparkjob import stage

sys.exit(stage(sys.argv[1:]))
