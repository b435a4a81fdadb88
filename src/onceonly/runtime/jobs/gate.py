"""The entry of a gate's driver on the cluster: examine what is staged. Arguments: PIPELINE EPOCH BY REPORT
[CONNECTIONS]."""

import sys

from onceonly.runtime.spark_job import gate

sys.exit(gate(sys.argv[1:]))
