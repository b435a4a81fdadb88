"""A fake source and sink without Spark, Kafka or Delta (`fakes`), the test suite for sinks (`contract`), a checker of
what readers saw (`history`), and a run in which everything breaks (`chaos`).
"""

import sys

if "pytest" in sys.modules:  # so that failed assertions of the suite show their values
    sys.modules["pytest"].register_assert_rewrite("onceonly.testing.contract")
