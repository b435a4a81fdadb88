"""What `make test` takes of a class of the suite whose rows are staged on Spark.

A commit reads what is staged, whoever has staged it. So a class may name a part if all tests run in `make test` on the
same target with rows that are staged in process. The part holds what depends on Spark: what it writes, what a reader
and a gate find in it, and what is left of it. `make heavy` runs the other tests.

The files on HDFS have no such like: the others of their tests run in `make heavy` alone, and on local files and object
stores in `make test`.
"""

from __future__ import annotations

import pytest

WRITTEN_BY_SPARK = frozenset(
    {
        "test_a_commit_publishes_all_rows",
        "test_a_handle_says_how_many_rows",
        "test_what_is_staged_can_be_looked_at_here_and_on_spark",
        "test_an_output_without_rows_is_staged_and_published_too",
        "test_commits_from_several_processes_and_threads_at_once_publish_once",
        "test_what_is_replaced_gives_way_in_the_commit_that_replaces_it",
        "test_what_is_retracted_is_taken_out_and_stays_out",
        "test_rows_that_are_gone_are_never_taken_for_published",
        "test_an_abort_leaves_nothing_and_may_be_repeated",
        "test_leftovers_are_exactly_what_is_staged_and_not_published",
        "test_rehearsed_object_publishes_once",
        "test_repair_takes_out_the_rows_of_one_checkpoint_alone",
    }
)
BROKEN_ON_SPARK = WRITTEN_BY_SPARK | {"test_rehearsal_refuses_what_is_broken"}


def is_in_part(item: pytest.Function) -> bool:
    """Return whether `make test` takes this test: its class names no part, or this test in it."""
    part = getattr(item.cls, "part", None)
    return part is None or item.originalname in part
