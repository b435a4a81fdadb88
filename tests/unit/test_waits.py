"""Every call that may block for long names what it waits for (`onceonly.waits`)."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceonly import waits

pytestmark = pytest.mark.slow

SOURCE = Path(waits.__file__).parent
# What may block for more than two seconds. A call of each is named, or stands below with the reason why not.
BLOCKING = {"sleep", "flock", "run", "poll", "flush", "wait", "DeltaTable"}
MODULES_OF_RUN = {"subprocess"}
BRIEF = {
    "cli/console.py:_run_pager": "a person reads, who sees what it waits for",
    "airflow": "tasks, a trigger and the page; a task's log says what it does, and it has no terminal",
    "cli/wait_line.py": "the line that shows waits",
    "dev/demo/__init__.py": "holds the victims of the demo, which are killed",
    "dev/demo/proof.py": "a step of the demo, which has a name",
    "dev/demo/load.py": "has a bar of its own",
    "dev/demo/run.py": "does not block: it refuses a second demo",
    "dev/services/__init__.py:up": "named where each service is waited for",
    "dev/chaos": "prints each step and fault, and how long it took",
    "dev/services/far_broker.py:start": "named where the broker is waited for",
    "dev/services/daemon.py:_is_leader": "a second at most",
    "kafka/librdkafka.py": "the producer's calls, which `sinks/kafka/producer.py` names",
    "kafka/topic.py:PatientConsumer": "called within a request, which is named",
    "kafka/topic.py:_no_answer_error": "delivers what is there",
    "kafka/topic.py:_request": "a tenth of a second between two requests, each of which is named",
    "probe": "called while `onceonly probe` tries a place, which the command names",
    "runtime/child_process.py": "of tasks",
    "runtime/code_version.py": "has a time-out of its own, of a second or two",
    "runtime/kubernetes.py": "of tasks",
    "runtime/client_job.py": "of tasks",
    "runtime/owners.py": "the thread that renews leases",
    "runtime/stage_progress.py": "the thread that writes progress",
    "sinks/delta": "called while a sink stages, checks or publishes, which the coordinator names",
    "sinks/kafka/producer.py:write": "delivers what is there",
    "sinks/kafka/producer.py:_raise_fatal": "a second at most",
    "sources/consumer_group.py": "called within `_open_consumer`, which is named",
    "spark/jvm.py:java_version": "`java -version`",
    "spark/progress.py": "the thread that reports progress",
    "statetable/compaction.py": "called by `tidy`, which is named, but for copies on this machine's disk",
    "statetable/location.py": "called by `read_properties`, which is named",
    "statetable/query.py:_copy_table": "called by `_ask`, which is named",
    "storage/arbitration.py": "threads that begin together, for requests that are named",
    "testing": "of tests",
}


def find_unnamed_calls() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and is_blocking(node) and not is_named(node, parents):
                yield f"{path.relative_to(SOURCE)}:{name_scope(node, parents)}: {ast.unparse(node)[:60]}"


def is_blocking(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in BLOCKING:
        return False
    if name == "run":
        return isinstance(function, ast.Attribute) and ast.unparse(function.value) in MODULES_OF_RUN
    if name == "poll":
        return bool(call.args)
    if name == "flush":
        return "producer" in ast.unparse(function)
    return True


def list_scopes(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> list[ast.AST]:
    scopes = []
    while node in parents:
        node = parents[node]
        scopes.append(node)
    return scopes


def is_named(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    for scope in list_scopes(node, parents):
        if isinstance(scope, ast.With) and any("wait_for(" in ast.unparse(item) for item in scope.items):
            return True
    return False


def name_scope(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    names = [scope.name for scope in list_scopes(node, parents) if isinstance(scope, ast.FunctionDef | ast.ClassDef)]
    return ".".join(reversed(names))


def is_brief(call: str) -> bool:
    module, scope, _ = call.split(":", 2)
    for place in BRIEF:
        file, _, name = place.partition(":")
        if (module == file or module.startswith(f"{file}/")) and (not name or name in scope.split(".")):
            return True
    return False


def test_blocking_calls_are_named() -> None:
    assert [call for call in find_unnamed_calls() if not is_brief(call)] == []


def test_reasons_are_needed() -> None:
    unnamed = list(find_unnamed_calls())
    for place in BRIEF:
        file, _, name = place.partition(":")
        calls = [call for call in unnamed if call.startswith(file) and name in call]
        assert calls, f"{place} has nothing that needs a reason"


def test_waits_end_in_any_order() -> None:
    first, second = waits.wait_for("a"), waits.wait_for("b")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert [wait.what for wait in waits.list_open()] == ["b"]
    second.__exit__(None, None, None)
    assert waits.list_open() == []


def test_waits_of_threads_are_seen() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with waits.wait_for("a thread"):
            begun.set()
            may_end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert [wait.what for wait in waits.list_open()] == ["a thread"]
    assert waits.list_open(min_seconds=1000) == []
    may_end.set()
    thread.join()


def test_description_names_step_wait_and_detail() -> None:
    with waits.step("onceonly run"), waits.step("stage"):
        assert waits.describe(waits.list_open()).startswith("stage, since ")
        with waits.wait_for("Spark") as wait:
            wait.detail = "3 of 8 tasks done"
            assert waits.describe(waits.list_open()).startswith("stage: waiting for Spark, 3 of 8 tasks done, since ")
