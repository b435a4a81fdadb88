"""What the writers of sinks share, ours and those of other packages (docs/add-a-sink.md).

Configs import `onceonly.sinks` alone: DAG files import them, and pyarrow takes too long for that.
"""

from onceonly.checkpoint.sink import replaced_handles
from onceonly.pipeline.shapes import Count, Like
from onceonly.sinks.staging.handles import TXN
from onceonly.sinks.staging.history import require as require_history
from onceonly.sinks.staging.row_types import arrow as to_arrow_schema
from onceonly.sinks.staging.row_types import read_schema, refuse_duplicates
from onceonly.sinks.staging.unanswered import nothing_published
from onceonly.sinks.staging.verification import (
    MISSING_ADVICE,
    as_accepted_loss,
    as_right,
    as_unknown,
    as_unrecorded,
    as_wrong,
    find_last_decision,
)
from onceonly.sinks.staging.worker_errors import find_worker_error, worker_error
from onceonly.spark.small_batch import collect_small_batch

__all__ = [
    "MISSING_ADVICE",
    "TXN",
    "Count",
    "Like",
    "as_accepted_loss",
    "as_right",
    "as_unknown",
    "as_unrecorded",
    "as_wrong",
    "collect_small_batch",
    "find_last_decision",
    "find_worker_error",
    "nothing_published",
    "read_schema",
    "refuse_duplicates",
    "replaced_handles",
    "require_history",
    "to_arrow_schema",
    "worker_error",
]
