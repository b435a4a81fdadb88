"""A source and a sink without Spark, Kafka or Delta (`fakes`), and the suite that every sink passes (`contract`)."""

import sys

if "pytest" in sys.modules:  # a failed assertion of the suite shows its values, as one of a test module does
    sys.modules["pytest"].register_assert_rewrite("onceonly.testing.contract")
