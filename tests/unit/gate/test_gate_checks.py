"""What a gate finds, without Spark and without Great Expectations."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
from codes import raises
from patience import PATIENCE

from onceonly.checkpoint.model import Event, Row, fold
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.checkpoint.sink import InspectableRows
from onceonly.errors import InvalidPipeline
from onceonly.gate import docs, expectations, suites
from onceonly.gate.expectations import Subject
from onceonly.gate.inspector import LiveInspector
from onceonly.gate.reductions import LocalRows
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Fresh, Gate
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource

pytestmark = pytest.mark.slow

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
DAY = 86_400


class Staged(InspectableRows):
    """A sink of which only the staged rows are of interest."""

    name = "lake"

    def __init__(self, rows: pa.Table, columns: list[str] | None = None) -> None:
        self.rows, self.known = rows, columns

    def read_staged(self, handle):
        return self.rows.to_reader()

    def staged_frame(self, handle, spark):
        raise AssertionError("no Spark here")

    def columns(self):
        return self.known


def pipeline(**asked) -> Pipeline:
    sinks = [DeltaSink("lake", "lake")]
    return Pipeline(name="flights", source=KafkaSource("t"), transform="a:b", sinks=sinks, gate=Gate(**asked))


def inspector(folder, rows: pa.Table, columns=None, **asked) -> LiveInspector:
    no_spark = pytest.fail
    return LiveInspector(pipeline(**asked), lambda name: Staged(rows, columns), folder, str(folder / "docs"), no_spark)


def staged(made: Pipeline, rows: int, interval: Interval | None = None):
    ranges = [TopicRange("t", "id", {0: (0, 9)}).to_json()]
    plan = {"definition": made.to_json(), "ranges": ranges}
    claim = {"nonce": "n", "state_id": "s", "worker": "w"}
    handles = {"handles": {"lake": {"rows": rows}}}
    events = ((Event.PLANNED, plan), (Event.CLAIMED, claim), (Event.STAGED, handles))
    return fold(
        Row("flights", seq, 1, event, 1, "run-1", interval=interval, body=body, at=NOON)
        for seq, (event, body) in enumerate(events, 1)
    )[1]


def repaired(made: Pipeline, sink: str, rows: int, interval: Interval | None = None):
    """A repair that writes only that sink."""
    plan = {"definition": made.to_json(), "ranges": [TopicRange("t", "id", {0: (0, 9)}).to_json()], "replaces": 1}
    repair = {"only": [sink], "of": 1, "who": "ann", "reason": "rates"}
    claim = {"nonce": "n", "state_id": "s", "worker": "w"}
    events = (
        (Event.PLANNED, {**plan, "repair": repair}),
        (Event.CLAIMED, claim),
        (Event.STAGED, {"handles": {sink: {"rows": rows}}}),
    )
    return fold(
        Row("flights", seq, 2, event, 1, "run-1", interval=interval, body=body, at=NOON)
        for seq, (event, body) in enumerate(events, 1)
    )[2]


def test_a_repair_is_judged_by_the_checks_of_the_sinks_that_it_writes(tmp_path):
    suite = {"name": "s", "expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "n"}}]}
    (tmp_path / "s.json").write_text(json.dumps(suite))
    gate = Gate(suites={"lake": "s.json", "late": "s.json"}, min_rows={"late": 1, "new": 1})
    sinks = [DeltaSink(name, name) for name in ("lake", "late", "new", "free")]
    made = Pipeline(name="flights", source=KafkaSource("t"), transform="a:b", sinks=sinks, gate=gate)

    def find(sink: str):
        staged = Staged(pa.table({"n": [1, 2]}))
        staged.name = sink
        live = LiveInspector(made, lambda name: staged, tmp_path, str(tmp_path / "docs"), pytest.fail)
        findings = live.examine(repaired(made, sink, 2))
        return {name: len(examined["checks"]) for name, examined in findings.sinks.items()}

    assert find("late") == {"late": 2}
    assert find("lake") == {"lake": 1}
    assert find("new") == {"new": 1}
    assert find("free") == {}


def test_records_of_a_chain_that_are_written_once_more_need_not_be_fresh(tmp_path):
    table = pa.table({"at": pa.array([NOON - timedelta(days=40)])})
    made = pipeline(fresh=Fresh("at", DAY))
    live = inspector(tmp_path, table, fresh=Fresh("at", DAY))
    assert live.examine(repaired(made, "lake", 1)).sinks["lake"]["checks"] == []
    day = Interval(NOON - timedelta(days=40), NOON - timedelta(days=38))
    assert [check["ok"] for check in live.examine(repaired(made, "lake", 1, day)).sinks["lake"]["checks"]] == [False]


def look(folder, rows: int, table: pa.Table | None = None, interval: Interval | None = None, **asked):
    seen = inspector(folder, pa.table({}) if table is None else table, **asked)
    found = seen.examine(staged(pipeline(**asked), rows, interval))
    assert found.docs is None
    assert found.sinks["lake"]["path"] == "in process"
    return [(check["ok"], check["observed"]) for check in found.sinks["lake"]["checks"]]


@pytest.mark.parametrize(
    ("rows", "ok"), [(0, [False, True]), (1, [True, True]), (9, [True, True]), (10, [True, False])]
)
def test_row_counts_are_bounded_on_both_sides(tmp_path, rows, ok):
    assert look(tmp_path, rows, min_rows=1, max_rows=9) == [(each, str(rows)) for each in ok]


@pytest.mark.parametrize(
    ("times", "ok", "observed"),
    [
        ([NOON - timedelta(days=2), NOON - timedelta(hours=23)], True, "2012-12-31T13:00:00Z"),
        ([NOON - timedelta(days=1), None], True, "2012-12-31T12:00:00Z"),
        ([NOON - timedelta(days=1, seconds=1)], False, "2012-12-31T11:59:59Z"),
        ([datetime(2013, 1, 1, 6)], True, "2013-01-01T06:00:00Z"),  # without a zone: UTC
        ([date(2012, 12, 31)], True, "2012-12-31T23:59:59Z"),
        ([date(2012, 12, 30)], False, "2012-12-30T23:59:59Z"),
    ],
)
def test_the_newest_row_must_not_be_too_old(tmp_path, times, ok, observed):
    table = pa.table({"at": pa.array(times)})
    assert look(tmp_path, len(times), table, fresh=Fresh("at", DAY)) == [(ok, observed)]


def test_an_interval_is_fresh_by_its_own_end(tmp_path):
    long_ago = Interval(NOON - timedelta(days=400), NOON - timedelta(days=399))
    table = pa.table({"at": [NOON - timedelta(days=399, hours=1)]})
    assert look(tmp_path, 1, table, long_ago, fresh=Fresh("at", DAY)) == [(True, "2011-11-29T11:00:00Z")]


def test_nothing_but_nulls_is_not_fresh_and_no_rows_need_not_be(tmp_path):
    nulls = pa.table({"at": pa.array([None], pa.timestamp("us", "UTC"))})
    assert look(tmp_path, 1, nulls, fresh=Fresh("at", DAY)) == [(False, "only nulls")]
    assert look(tmp_path, 0, nulls.slice(1), fresh=Fresh("at", DAY)) == []


@pytest.mark.parametrize(("column", "why"), [("when", "The rows have the columns at."), ("at", "Its type is int64.")])
def test_what_holds_no_times_cannot_be_fresh(tmp_path, column, why):
    with raises(InvalidPipeline, "no-such-column", match=f"time column '{column}'") as refused:
        look(tmp_path, 1, pa.table({"at": [1]}), fresh=Fresh(column, DAY))
    assert refused.value.why == why


def test_bounds_import_no_great_expectations():
    program = """
import sys
sys.argv = ["unit"]
sys.path[:0] = ["tests"]
from pathlib import Path
from datetime import UTC, datetime
from unit.gate.test_gate_checks import look, NOON
import pyarrow as pa
from onceonly.pipeline.gate import Fresh
look(Path("."), 1, pa.table({"at": [NOON]}), min_rows=1, fresh=Fresh("at", 60))
assert not {"great_expectations", "pyspark"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


# ---- suites


def write(folder, text: str):
    (folder / "s.json").write_text(text)
    return suites.load("s.json", folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "It has no list of 'expectations'"),
        ('{"expectations": []}', "It has no list of 'expectations'"),
        ('{"expectations": [{"kwargs": {}}]}', "Expectation 1 has no 'type'"),
        ('{"expectations": [{"type": "expect_x", "kwargs": []}]}', "The 'kwargs' of expectation 1 are not an object"),
        ('{"expectations": [{"type": "expect_x", "severity": "bad"}]}', "has the severity 'bad'"),
    ],
)
def test_what_is_no_suite_is_refused(tmp_path, text, why):
    with raises(InvalidPipeline, "suite-invalid", match=why):
        write(tmp_path, text)


def test_a_suite_that_is_not_there_is_refused(tmp_path):
    with raises(InvalidPipeline, "suite-missing"):
        suites.load("s.json", tmp_path)


def test_columns_of_rows_are_distinguished_from_columns_that_a_table_must_have(tmp_path):
    asked = """{"expectations": [
        {"type": "expect_column_pair_values_to_be_equal", "kwargs": {"column_A": "a", "column_B": "b"}},
        {"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": ["b", "c"]}},
        {"type": "expect_table_columns_to_match_ordered_list", "kwargs": {"column_list": ["x"]}},
        {"type": "expect_table_row_count_to_be_between"}
    ]}"""
    assert write(tmp_path, asked).columns == ["a", "b", "c"]


def test_a_column_is_looked_for_as_soon_as_columns_are_known(tmp_path):
    write(tmp_path, '{"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "m"}}]}')
    unknown = inspector(tmp_path, pa.table({}), suites="s.json")
    assert unknown.check() == [
        "gate: s.json has 1 expectation for sink 'lake', whose columns are known once its first rows are staged"
    ]
    with raises(InvalidPipeline, "no-such-column", match="names 'm', and sink 'lake' has no such column"):
        inspector(tmp_path, pa.table({}), ["n"], suites="s.json").check()


def test_values_of_rows_do_nothing_in_a_page(tmp_path):
    check = {"what": "<b>n</b>", "ok": False, "severity": "critical", "observed": "<script>alert(1)</script>"}
    index = docs.write_pages(str(tmp_path / "d"), "flights <1>", {"lake": [check]}, {})
    page = (tmp_path / "d" / "index.html").read_text()
    assert index == (tmp_path / "d" / "index.html").as_uri()
    assert "<script" not in page
    assert "<b>" not in page
    assert "default-src 'none'" in page
    docs.delete_pages(index)
    assert not (tmp_path / "d").exists()


def test_a_suite_whose_expectation_cannot_be_judged_is_refused(tmp_path):
    """By `check`, before anything is written."""
    write(tmp_path, '{"expectations": [{"type": "expect_column_values_to_be_increasing", "kwargs": {"column": "n"}}]}')
    with raises(InvalidPipeline, "expectation-not-judged", match="be_increasing"):
        inspector(tmp_path, pa.table({}), ["n"], suites="s.json").check()


class Typed(Staged):
    """A sink whose types are known before rows are staged, such as a table."""

    def types(self):
        return {"fields": [{"name": "n", "type": "string"}]}


def test_a_type_that_an_expectation_cannot_judge_is_refused(tmp_path):
    write(
        tmp_path,
        '{"expectations": [{"type": "expect_column_sum_to_be_between", "kwargs": {"column": "n", "max_value": 1}}]}',
    )
    made = LiveInspector(
        pipeline(suites="s.json"), lambda name: Typed(pa.table({}), ["n"]), tmp_path, str(tmp_path), pytest.fail
    )
    with raises(InvalidPipeline, "expectation-not-judged", match="column 'n' has text") as refused:
        made.check()
    assert refused.value.code == "expectation-not-judged"


def test_a_page_that_cannot_be_written_leaves_the_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(
        expectations, "_render_page", lambda suite, sink, results: "<html><head></head><body></body></html>"
    )
    (tmp_path / "docs").write_text("a file where the folder should be")
    write(tmp_path, '{"expectations": [{"type": "expect_column_values_to_be_unique", "kwargs": {"column": "n"}}]}')
    made = inspector(tmp_path, pa.table({"n": [1, 1]}), ["n"], suites="s.json")
    found = made.examine(staged(pipeline(suites="s.json"), 2))
    judged, about_docs = found.sinks["lake"]["checks"]
    assert (judged["ok"], judged["observed"], found.docs) == (False, "2 of 2 rows", None)
    assert (about_docs["ok"], about_docs["severity"]) == (False, "info")


def test_a_page_that_cannot_be_made_leaves_the_verdict(tmp_path, monkeypatch):
    def fail():
        raise RuntimeError("no template")

    monkeypatch.setattr(expectations, "_import_great_expectations", fail)
    suite = write(tmp_path, '{"expectations": [{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}]}')
    [check], page = expectations.run(Subject(suite, LocalRows(pa.table({"n": [1]})), False), "lake")
    assert check["ok"]
    assert "no template" in page


def test_without_rows_and_types_each_row_is_as_expected(tmp_path):
    """As of Avro files, which only Spark can read."""
    suite = write(
        tmp_path,
        """{"expectations": [
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "n"}},
        {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "n", "min_value": 0}}
    ]}""",
    )
    assert [result.ok for result in expectations.judge(Subject(suite, None, False))] == [True, False]
