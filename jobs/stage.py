"""spark-submit's entry: stage one checkpoint. Arguments: PIPELINE EPOCH OWNER."""

import sys

from onceonly.stagejob import main

sys.exit(main(sys.argv[1:]))
