"""A table of faults that users meet in Spark, Delta and workers, by the texts that these raise: code and advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.world import World

from onceonly.runtime import spark_errors

JOB = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 "
CALL = "An error occurred while calling o72.save.\n: org.apache.spark.SparkException: "
WORKER = 'Traceback (most recent call last):\n  File "/lib/x.py", line 3, in read\n'
FAULTS = [
    ("text-too-long", CALL + "[EXCEED_LIMIT_LENGTH] Exceeds char/varchar type length limitation: 3. SQLSTATE: 54006"),
    ("text-too-long", "[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value \"abcd\" exceeds char/varchar type length limitation."),
    ("constraint-violated", "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint c (n > 0) violated by row"),
    ("null-refused", "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: n."),
    ("null-refused", "[NOT_NULL_ASSERT_VIOLATION] NULL value appeared in non-nullable field: n"),
    ("name-too-long", JOB + "(TID 4): java.io.FileNotFoundException: /lake/p=xx/part-0.parquet (File name too long)"),
    ("name-too-long", CALL + "x\nCaused by: java.io.IOException: Mkdirs failed to create file:/lake/p=" + "é" * 130),
    ("permission-denied", CALL + "x\nCaused by: java.io.IOException: Mkdirs failed to create file:/lake/p=1"),
    ("no-such-column", "[UNRESOLVED_USING_COLUMN_FOR_JOIN] USING column `x` cannot be resolved on the left side"),
    ("schema-does-not-fit", CALL + "x\nCaused by: org.apache.spark.sql.avro.IncompatibleSchemaException: Cannot "
     "convert SQL type STRUCT<a: STRING, b: INT> to Avro type"),
    ("schema-does-not-fit", "[AVRO_INCOMPATIBLE_READ_TYPE] Cannot convert Avro field"),
    ("recursive-schema", CALL + "x\nFound recursive reference in Avro schema, which can not be processed by Spark:"),
    ("types-differ", "[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'n' and 'n'"),
    ("types-differ", "[DELTA_MERGE_INCOMPATIBLE_DATATYPE] Failed to merge incompatible data types"),
    ("types-differ", "[INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST] Cannot write incompatible data"),
    ("value-does-not-fit", "[CAST_INVALID_INPUT] The value 'x' of the type \"STRING\" cannot be cast to \"INT\""),
    ("value-does-not-fit", "[ARITHMETIC_OVERFLOW] long overflow. Use 'try_add'"),
    ("value-does-not-fit", "[NUMERIC_VALUE_OUT_OF_RANGE] 12345 cannot be Decimal(4, 0)."),
    ("value-does-not-fit", "[CANNOT_PARSE_TIMESTAMP] Text 'x' could not be parsed"),
    ("division-by-zero", "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`"),
    ("out-of-bounds", "[INVALID_ARRAY_INDEX] The index 3 is out of bounds."),
    ("out-of-bounds", "[DUPLICATED_MAP_KEY] Duplicate map key a was found"),
    ("ancient-dates", "[INCONSISTENT_BEHAVIOR_CROSS_VERSION.WRITE_ANCIENT_DATETIME] You may get a different result"),
    ("no-such-column", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `carier` cannot be resolved."),
    ("no-such-column", "[AMBIGUOUS_REFERENCE] Reference `n` is ambiguous"),
    ("no-such-table", "[TABLE_OR_VIEW_NOT_FOUND] The table or view `dim` cannot be found."),
    ("no-such-table", "[PATH_NOT_FOUND] Path does not exist: file:/lake/dim."),
    ("type-of-expression", "[DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES] Cannot resolve"),
    ("disk-full", CALL + "Job aborted.\n\tat x.Y(Z.java:1)\nCaused by: java.io.IOException: No space left on device"),
    ("disk-full", "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota is exceeded"),
    ("permission-denied", "java.io.FileNotFoundException: /lake/part-0.parquet (Permission denied)"),
    ("permission-denied", "org.apache.hadoop.security.AccessControlException: Permission denied: user=spark"),
    ("permission-denied", "software.amazon.awssdk.services.s3.S3Exception: Access Denied (403)"),
    ("permission-denied", "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized"),
    ("permission-denied", "java.io.IOException: /lake: Read-only file system"),
    ("out-of-memory", JOB + "(TID 4): java.lang.OutOfMemoryError: Java heap space"),
    ("out-of-memory", JOB + "ExecutorLostFailure: Container killed by YARN for its memory. exit code: 137"),
    ("out-of-memory", "Total size of serialized results is bigger than spark.driver.maxResultSize (1024.0 MiB)"),
    ("package-missing-on-workers", "[UDF] " + WORKER + "ModuleNotFoundError: No module named 'shapely'"),
    ("python-differs", "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10"),
    ("jar-missing", "java.lang.ClassNotFoundException: Failed to find data source: delta"),
    ("jar-missing", "java.lang.NoSuchMethodError: 'void org.apache.spark.X.y()'"),
    ("function-raised", "An exception was thrown from the Python worker.\n" + WORKER + "KeyError: 'a'"),
    ("function-raised", "[FAILED_EXECUTE_UDF] User defined function failed"),
    ("file-not-found", "[FAILED_READ_FILE.FILE_NOT_EXIST] File file:/lake/a.parquet does not exist."),
    ("not-reachable", "java.net.UnknownHostException: namenode"),
    ("not-reachable", "<_MultiThreadedRendezvous of RPC: StatusCode.UNAVAILABLE, failed to connect>"),
    ("executor-lost", JOB + "ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"),
    ("executor-lost", "Python worker exited unexpectedly (crashed)"),
    ("task-failed", "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. SQLSTATE: 58030"),
    ("jvm-ended", "Answer from Java side is empty"),
    ("staging-failed", "Something that nobody has seen."),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text"), FAULTS)
def test_a_fault_has_its_code_and_advice(code: str, text: str) -> None:
    found, todo = spark_errors.classify(text)
    assert found == code
    assert "retry the stage: clear its task in Airflow, or onceonly run " in todo
    assert len(todo) < 300


class OfEndedJvm(Exception):
    """As Py4JJavaError: its text is asked of the JVM."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_error_whose_text_has_gone_with_the_jvm_says_so_and_where_it_was() -> None:
    error = OfEndedJvm()
    error.add_note("It happened while the rows of sink 'lake' were written.")
    told = spark_errors.keep_text(error)
    assert spark_errors.classify(str(told))[0] == "jvm-ended"
    assert "sink 'lake'" in spark_errors.describe_error(told, [Path()])
    other = ValueError("as it is")
    assert spark_errors.keep_text(other) is other


def test_classes_of_a_trace_are_no_cause() -> None:
    trace = "[SOMETHING] else\n\tat java.lang.OutOfMemoryError.x(A.java:1)\n\tat x.AccessControlException.y(B.java:2)"
    assert spark_errors.classify(trace)[0] == "staging-failed"


def test_what_is_told_names_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a page of Java, and with the error of the type that it had."""
    world = World(tmp_path)
    world.plan()
    wrong = type("Py4JJavaError", (Exception,), {})(CALL + "Job aborted.\n" + "\tat x.Y(Z.java:1)\n" * 200)

    def fail(*_: Any) -> None:
        raise wrong

    monkeypatch.setattr(type(world.lake), "stage", fail)
    with pytest.raises(type(wrong)) as raised:
        world.stage()
    told = spark_errors.describe_error(raised.value, [tmp_path])
    assert told == (
        "Py4JJavaError: org.apache.spark.SparkException: Job aborted.\n"
        "It happened while the rows of sink 'lake' were written."
    )
