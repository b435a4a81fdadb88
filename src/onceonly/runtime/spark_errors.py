"""Errors of Spark, Delta and a transform: what happened, at which of the user's own lines, and what a person can do.

Columns are evaluated late, so Python's traceback often ends in this package: Spark's query context then names the line
that made the column. A function that Spark runs in a worker has its traceback in the text of the error.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceonly.documentation import name_page
from onceonly.errors import first_cause
from onceonly.runtime.transforms import INSTALLED

PACKAGE = Path(__file__).parents[1]  # this one, which may lie within a project, too
MAX_ERROR_CHARACTERS = 500  # of the error itself
PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
CALL_SITE = re.compile(r"(.+?):(\d+)$")
TRACEBACK_TITLE = "Traceback (most recent call last)"
JVM_ENDED = "Spark's JVM has ended"
Site = tuple[str, int]  # file and line


def keep_text(error: Exception) -> Exception:
    """Return the error, or another one where it has no text: Spark's JVM has it, and has ended."""
    try:
        str(error)
    except Exception:
        ended = RuntimeError(f"{JVM_ENDED}.")
        for note in getattr(error, "__notes__", ()):
            ended.add_note(note)
        return ended.with_traceback(error.__traceback__)
    return error


def describe_error(error: BaseException, folders: Sequence[Path]) -> str:
    """Return what happened, into which sink, and where.

    Args:
        folders: of the user's own code; the first one is the project's, and paths in it are shown relative to it.
    """
    what = "\n".join([f"{_name(error)}: {_first_line(error)}", *getattr(error, "__notes__", ())])
    own_sites = [site for site in _sites(error) if _is_own(site[0], folders)]
    if not own_sites:
        return what
    return f"{what}\nIt comes from {_format_site(own_sites[0], folders[0])}."


def _name(error: BaseException) -> str:
    """Return the error's class; PySpark's name also for a worker's error that it now and then hands on as the JVM's."""
    name = type(error).__name__
    return "PythonException" if name == "Py4JJavaError" and TRACEBACK_TITLE in str(error) else name


def _first_line(error: BaseException) -> str:
    """Return the first line; of a traceback in the text, the last one, which says what was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if TRACEBACK_TITLE in line:
            return _last_line_of_traceback(lines[number + 1 :], lines[0]).strip()[:MAX_ERROR_CHARACTERS]
    return first_cause(str(error))[:MAX_ERROR_CHARACTERS]


def _last_line_of_traceback(lines: Sequence[str], default: str) -> str:
    """Return the first line that is not indented: the frames before it are."""
    for line in lines:
        if not line.startswith((" ", "\t")):
            return line
    return default


def _sites(error: BaseException) -> Iterator[Site]:
    """Yield where the error may come from, the most telling site first."""
    for context in _contexts(error):
        call_site = CALL_SITE.match(_call_site(context))
        if call_site:
            yield call_site[1], int(call_site[2])
    for file, line in reversed(PYTHON_FRAME.findall(str(error))):
        yield file, int(line)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield frame.filename, frame.lineno or 0


def _contexts(error: BaseException) -> Sequence[Any]:
    get_contexts = getattr(error, "getQueryContext", None)
    if get_contexts is None:
        return ()
    return get_contexts() or ()


def _call_site(context: Any) -> str:
    """Return '/project/jobs/flights.py:12'; a context of SQL text has none."""
    try:
        return str(context.callSite()).strip()
    except Exception:  # whatever PySpark raises for the other kind: then there is no line to name
        return ""


def _is_own(file: str, folders: Sequence[Path]) -> bool:
    """Return whether the file is the user's: in one of the folders, and in no environment within the project."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return False
    for number, folder in enumerate(folders):
        if not path.is_relative_to(folder):
            continue
        is_project = number == 0
        if not is_project or not INSTALLED & set(path.relative_to(folder).parts):
            return True
    return False


def _format_site(site: Site, project: Path) -> str:
    path = Path(site[0])
    if path.is_relative_to(project):
        path = path.relative_to(project)
    return f"{path}, line {site[1]}"


NOTHING_PUBLISHED = "Nothing was published, and what was written is removed."
UNCLASSIFIED = "staging-failed"
RETRY = "retry the stage: clear its task in Airflow, or onceonly run FILE.py:NAME"
DEFAULT_REMEDY = f"Fix the cause and {RETRY}"
NAME_TOO_LONG_TEXT = "File name too long"  # what Linux says, and Hadoop keeps to itself
MAX_NAME_BYTES = 255  # of a file or folder, on nearly all file systems
MKDIRS_FAILED = re.compile(r"Mkdirs failed to create (\S+)")
JAVA_TRACE_LINE = re.compile(r"\s*at [\w.$/@<>]+\(")  # a line of a Java trace: its classes are in every trace


@dataclass(frozen=True)
class Fault:
    """A kind of error, and what to do about it.

    Args:
        code: the error's stable word.
        words: a pattern, searched for in all of the error's text.
        todo: what to do.
    """

    code: str
    words: re.Pattern[str]
    todo: str


def _fault(code: str, words: str, todo: str) -> Fault:
    return Fault(code, re.compile(words), todo)


FAULTS = (  # the most telling first: an error may have the words of several
    _fault(
        "jvm-ended",
        rf"{JVM_ENDED}|Answer from Java side is empty|Error while sending or receiving",
        "It was killed, or had too little memory: see what it printed. Give Spark's driver more (spark.driver.memory), "
        "or stage fewer records at once (limit).",
    ),
    _fault(
        "out-of-memory",
        r"OutOfMemoryError|Java heap space|GC overhead limit|exit(ed with| code|Code=| status)[ :]*137|"
        r"Container killed by YARN|OOMKilled|MemoryError|UNABLE_TO_ACQUIRE_MEMORY|spark\.driver\.maxResultSize",
        "Give Spark's driver and executors more memory, or stage fewer records at once (limit, a shorter interval).",
    ),
    _fault(
        "disk-full",
        r"No space left on device|ENOSPC|DSQuotaExceededException|QuotaExceeded|Disk quota exceeded",
        "Free space where the sink is, and on the local disks of Spark's workers.",
    ),
    _fault(
        "name-too-long",
        r"File name too long|ENAMETOOLONG|PathComponentTooLongException",
        "A value of a partition column is longer than a folder's name may be (255 bytes on most disks). Partition "
        "by something shorter, such as a date or a hash.",
    ),
    _fault(
        "permission-denied",
        r"Permission denied|AccessControlException|AccessDenied(Exception)?|Access Denied|EACCES|AuthorizationFailure|"
        r"PERMISSION_DENIED|status code:? 403|403 Forbidden|TopicAuthorizationException|GroupAuthorizationException|"
        r"Read-only file system|Mkdirs failed to create",
        "Let the user of Spark's driver and executors read the source and write where the sink is.",
    ),
    _fault(
        "package-missing-on-workers",
        r"ModuleNotFoundError|ImportError: |PACKAGE_NOT_INSTALLED",
        f"Install it in the Python of Spark's workers, or ship it with the job ({name_page('connections')}). It may be "
        "there where this command runs.",
    ),
    _fault(
        "python-differs",
        r"PYTHON_VERSION_MISMATCH|Python in worker has different version",
        "Use the same minor version of Python here and on Spark's workers (PYSPARK_PYTHON).",
    ),
    _fault(
        "jar-missing",
        r"ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|DATA_SOURCE_NOT_FOUND|"
        r"Failed to find data source",
        f"Put the jar of this Spark's version where Spark finds it: onceonly jars fetch ({name_page('connections')}).",
    ),
    _fault(
        "text-too-long",
        r"EXCEED_LIMIT_LENGTH|EXCEED_CHAR_VARCHAR|[Ee]xceeds (the )?(char/varchar|CHAR/VARCHAR) type length",
        "A text is longer than its VARCHAR or CHAR column allows. Shorten it in the transform, or widen the column.",
    ),
    _fault(
        "null-refused",
        r"NOT_NULL_CONSTRAINT_VIOLATED|NOT_NULL_ASSERT_VIOLATION|NOT NULL constraint violated|"
        r"NULL value appeared in non-nullable field|null value (for|in) (a )?non-null",
        "A column that may not be null has no value in a row. Fill it in the transform, or leave such rows out.",
    ),
    _fault(
        "constraint-violated",
        r"VIOLATE_CONSTRAINT|CHECK constraint .* violated|CHECK_CONSTRAINT_VIOLATION",
        "A row breaks a CHECK constraint of the table. Correct or leave out such rows in the transform.",
    ),
    _fault(
        "recursive-schema",
        r"[Ff]ound recursive reference in (Avro|Protobuf)|RECURSIVE_PROTOBUF_SCHEMA",
        "Spark has no recursive types. Decode the value in the transform (format='raw'), or use a schema without "
        "recursion.",
    ),
    _fault(
        "schema-does-not-fit",
        r"IncompatibleSchemaException|Cannot convert (SQL|Avro)|AVRO_INCOMPATIBLE|UNABLE_TO_CONVERT_TO_(AVRO|PROTOBUF)|"
        r"[Ff]ound field .* in (Catalyst|Avro) schema|no match in the (Avro|SQL|Catalyst) schema|"
        r"CANNOT_CONVERT_(SQL|CATALYST|PROTOBUF)",
        "Return columns from the transform that have the names and types of the sink's schema, or change the schema.",
    ),
    _fault(
        "types-differ",
        r"FAILED_TO_MERGE_FIELDS|MERGE_INCOMPATIBLE_DATATYPE|SCHEMA_MISMATCH|INCOMPATIBLE_DATA_FOR_TABLE|"
        r"Failed to merge (incompatible )?(fields|data types)|A schema mismatch detected",
        "Cast the columns in the transform to the types of the table, or alter the table.",
    ),
    _fault(
        "value-does-not-fit",
        r"CAST_INVALID_INPUT|CAST_OVERFLOW|ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|"
        r"NUMERIC_OUT_OF_SUPPORTED_RANGE|DATETIME_OVERFLOW|CANNOT_PARSE_(TIMESTAMP|DATE|DECIMAL)|BINARY_ARITHMETIC_OVERFLOW",
        "A value does not fit its type. Use try_cast, a wider type, or leave such rows out in the transform.",
    ),
    _fault("division-by-zero", r"DIVIDE_BY_ZERO", "Use try_divide in the transform, or leave such rows out."),
    _fault(
        "out-of-bounds",
        r"INVALID_ARRAY_INDEX|MAP_KEY_DOES_NOT_EXIST|SCALAR_SUBQUERY_TOO_MANY_ROWS|NULL_MAP_KEY|DUPLICATED_MAP_KEY",
        "Use try_element_at or another function of Spark that allows for such values in the transform.",
    ),
    _fault(
        "ancient-dates",
        r"INCONSISTENT_BEHAVIOR_CROSS_VERSION|SparkUpgradeException",
        "Set spark.sql.parquet.datetimeRebaseModeInWrite and …InRead to CORRECTED, or correct the dates before 1900.",
    ),
    _fault(
        "no-such-column",
        r"UNRESOLVED_(USING_)?COLUMN|FIELD_NOT_FOUND|UNRESOLVED_FIELD|AMBIGUOUS_REFERENCE|COLUMN_ALREADY_EXISTS",
        "Correct the name in the transform.",
    ),
    _fault(
        "no-such-table",
        r"TABLE_OR_VIEW_NOT_FOUND|SCHEMA_NOT_FOUND|PATH_NOT_FOUND|DELTA_TABLE_NOT_FOUND|UNRESOLVED_ROUTINE",
        "Correct the name in the transform, or make what it names available to Spark.",
    ),
    _fault(
        "type-of-expression",
        r"DATATYPE_MISMATCH|INVALID_EXTRACT|UNSUPPORTED_DATA_TYPE|CANNOT_INFER_TYPE|PARSE_SYNTAX_ERROR",
        "Correct the expression in the transform.",
    ),
    _fault(
        "function-raised",
        r"Traceback \(most recent call last\)|FAILED_EXECUTE_UDF|PythonException|UDF_ERROR",
        "Correct the function, or let it allow for such rows.",
    ),
    _fault(
        "file-not-found",
        r"FileNotFoundException|FAILED_READ_FILE|No such file or directory|NoSuchKey",
        "Something has removed or damaged files that were being read. Look whether others clean up there.",
    ),
    _fault(
        "not-reachable",
        r"Connection refused|UnknownHostException|NoRouteToHost|SSLHandshakeException|PKIX path|TimeoutException|"
        r"Failed to connect|StatusCode\.UNAVAILABLE|ConnectTimeout",
        "Let Spark's driver and executors reach the service that is named (network, address, certificate).",
    ),
    _fault(
        "executor-lost",
        r"ExecutorLostFailure|FetchFailed|executor .* (lost|exited)|Python worker exited unexpectedly|"
        r"SparkContext was shut down|SESSION_CLOSED",
        "Look at the executor's log for why it ended (memory, a lost machine).",
    ),
    _fault(
        "task-failed",
        r"TASK_WRITE_FAILED|Job aborted due to stage failure|Job aborted",
        "Spark does not say why here: look at the logs of its driver and executors.",
    ),
)


# They follow from the transform's text and the columns alone: until somebody edits it, every attempt ends the same way.
MENDED_BY_EDIT = frozenset({"no-such-column", "type-of-expression"})


def classify(text: str) -> tuple[str, str]:
    """Return the code of an error, and what to do about it."""
    lines = [line for line in text.splitlines() if not JAVA_TRACE_LINE.match(line)]
    searched_text = "\n".join([*lines, *(NAME_TOO_LONG_TEXT for line in lines if _names_too_long(line))])
    for fault in FAULTS:
        if fault.words.search(searched_text):
            return fault.code, f"{fault.todo} {NOTHING_PUBLISHED} Then {RETRY}"
    return UNCLASSIFIED, f"{NOTHING_PUBLISHED} {DEFAULT_REMEDY}"


def _names_too_long(line: str) -> bool:
    """Return whether a line is about a folder that could not be created because its name is too long."""
    folder = MKDIRS_FAILED.search(line)
    return folder is not None and any(len(name.encode()) > MAX_NAME_BYTES for name in folder[1].split("/"))
