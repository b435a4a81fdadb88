"""Each error code has its place: `onceonly check` finds it, nobody can know it before, or it is of another step.

A code that is new has none, and fails here until somebody has decided.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from onceonly import error_codes

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "operations.md"

# What a stage or its plan would trip over, and check does first. Of places on stores it knows whether they answer.
FOUND = frozenset(
    """
    action-needed another-cluster broker-not-configured bucket-missing catalog-unreachable change-feed-missing
    changes-invalid column-type columns-unknown connection-missing connection-unanswered connection-unreadable
    connection-unusable dead-letter-sink-unsuitable definition-unreadable end-partitions-differ expectation-not-judged
    fields-ambiguous folder-not-writable folder-with-several-writers group-active group-inaccessible
    group-without-offsets hdfs-user-unknown jar-missing java-missing jvm-jar-differs
    kafka-access-denied kafka-connection-invalid kafka-credentials-refused kafka-request-refused
    kafka-unreachable log-store-unsafe mode-mismatch name-invalid named-table-replaced names-not-distinct
    no-such-column no-such-partition no-such-pipeline no-such-sink no-such-topic no-topic-matches not-a-delta-table
    not-append-only option-invalid option-missing options-conflict own-output-read package-missing
    partitioning-differs pipeline-changed pipeline-file-broken pipeline-file-not-found pipeline-keeps-state
    published-before pyspark-missing pyspark-unsupported registry-access-denied registry-connection-invalid
    registry-request-refused registry-unreachable rows-not-replaceable schema-not-registered schema-unusable
    secret-visible sink-invalid sink-kind-ambiguous sink-kind-of-another sink-kind-unknown sink-not-inspectable
    sink-not-storable sink-package-broken source-missing source-unsupported spark-connection-invalid
    spark-token-refused spark-unreachable start-not-in-log state-behind state-table-copied state-table-damaged
    state-table-foreign state-table-format state-table-missing state-table-unreadable storage-unsupported
    store-jars-missing store-not-arbitrating store-unreachable subject-missing suite-invalid suite-missing
    table-managed table-not-in-catalog table-not-writable table-unreadable target-missing target-not-writable
    target-on-another-device target-read-only target-unsuitable target-went-back token-not-issued topic-missing
    topic-not-describable topic-not-json transaction-retention transaction-timeout-too-long
    transaction-timeout-too-short transaction-version-unsafe transform-foreign transform-not-function
    transform-not-importable upstream-circle upstream-merges upstream-missing upstream-unrelated
    upstream-without-intervals upstream-without-versions upstreams-share-table uri-invalid user-without-name
    writer-not-importable writer-unsuitable keytab-unusable
    """.split()  # noqa: SIM905
)

# It is in the rows, or in what the transform makes of them: only a stage reads them and runs it.
OF_THE_ROWS = frozenset(
    """
    ancient-dates change-invalid column-type-changed columns-differ columns-unsuitable constraint-violated
    dead-letters-invalid division-by-zero duplicate-column format-differs function-raised merge-impossible
    merge-partition-value name-too-long null-refused no-such-table out-of-bounds package-missing-on-workers
    python-differs record-time-unreadable record-undecodable recursive-schema row-not-accepted
    rows-outside-condition rows-unreadable-on-spark schema-does-not-fit schema-incompatible schema-unfit
    schema-unknown state-key-invalid state-type-too-narrow text-not-utf8 text-too-long too-many-bad-records
    transform-result-invalid type-of-expression types-differ value-does-not-fit watermark-decreased windows-changed
    """.split()  # noqa: SIM905
)

# It depends on when the stage runs, on which machine, and on what others do meanwhile.
OF_THE_MOMENT = frozenset(
    """
    writer-not-available
    boundary-too-far broker-not-writable checkpoint-open cluster-login-failed cluster-refused cluster-unreachable
    definition-changed disk-full doubt-before-decision driver-without-report earlier-decision-open executor-lost
    file-not-found files-of-another-user grace-not-over interval-before-state interval-empty interval-in-future
    interval-missing interval-not-in-table interval-not-over interval-overlaps interval-split job-failed job-killed
    jvm-ended log-damaged log-locked no-answer not-reachable offset-outside-log open-transaction out-of-memory
    outcome-unknown ownership-lost partition-missing permission-denied pipeline-renamed pool-exhausted
    records-expired registry-changed replaced-files-missing report-not-writable row-not-durable row-unknown
    rows-differ rows-in-force-changed source-files-missing source-log-expired source-log-replaced source-recreated
    source-replaced source-retracted source-shrank source-time-expired spark-skips-files staging-failed
    state-before-missing state-missing state-row-format state-run-missing state-shape-changed state-table-replaced
    state-unsettled storage-not-shared submission-failed submission-unknown table-not-looked-up target-full
    target-recreated target-silent task-failed topic-deleted transaction-not-open transaction-too-slow
    upstream-entries-expired upstream-not-complete handle-unsuitable interval-not-processed replaced-rows-changed
    target-changed too-many-links decision-without-time
    """.split()  # noqa: SIM905
)

# Of a gate, a commit, recovery, a manual action, a repair, Airflow, or a command of its own.
OF_OTHER_STEPS = frozenset(
    """
    again-not-needed asked-before checkpoints-unsettled code-unknown command-unknown commit-unconfirmed
    connection-changed date-outside-interval dead-letters-alone dead-letters-kept decision-not-closed decision-open
    decision-too-low demo-failed demo-load-interrupted demo-outside-checkout demo-running demo-topic-unsuitable
    ends-incomplete epoch-not-in-force evidence-exists evidence-lost file-exists file-not-writable gate-failed
    gate-held gate-not-run handle-damaged home-in-bundle installation-invalid jars-not-fetched manifest-damaged
    marker-missing name-taken newer-rows-there no-columns-found no-dag-to-run no-such-epoch not-a-gap not-approved
    not-held not-repairable not-reprocessable not-staged nothing-committed nothing-lost nothing-published
    nothing-to-adopt nothing-to-forget nothing-to-repair nothing-to-rewind notification-failed offsets-of-upstream
    not-a-streaming-checkpoint pipeline-has-begun source-inaccessible streaming-batch-unknown
    streaming-query-active pipeline-not-run pipeline-of-two-dags port-in-use publication-not-recorded
    publication-unfinished published-rows-edited
    published-rows-fixed published-rows-rewritten reason-missing request-differs rows-not-removed
    rows-not-retractable rows-returned rows-there-again rows-unclear run-without-interval schedule-without-interval
    seen-missing seen-outdated seen-unknown service-not-started service-not-stopped shell-unknown sink-given-up
    sink-in-doubt sink-not-fenced sink-not-in-doubt sink-not-waiting sink-removed spark-classes-not-prepared
    spool-missing stage-again staged-files-missing staged-rows-damaged staged-rows-refused start-date-missing
    state-not-repairable state-table-not-copied target-altered target-is-back topic-not-created
    log-too-old transaction-end-refused transaction-end-unconfirmed transaction-lost transaction-taken-over
    verdict-missing verification-not-recorded probe-folder-missing probe-not-completed probe-not-removed
    probe-unknown-place promise-broken
    """.split()  # noqa: SIM905
)
PLACES = {"found": FOUND, "rows": OF_THE_ROWS, "moment": OF_THE_MOMENT, "other": OF_OTHER_STEPS}


def test_every_code_has_one_place() -> None:
    codes = {explanation.code for explanation in error_codes.read_catalogue().values()}
    placed = [code for place in PLACES.values() for code in place]
    assert codes - set(placed) == set(), "say whether check finds it, or why it cannot"
    assert set(placed) - codes == set(), "no code any more"
    assert sorted(code for code in set(placed) if placed.count(code) > 1) == []


@pytest.mark.parametrize("place", ["rows", "moment"])
def test_what_cannot_be_known_is_said(place: str) -> None:
    section = DOCS.read_text("utf-8").partition("### What check cannot know")[2].partition("\n### ")[0]
    words = {"rows": "what the rows are", "moment": "what happens meanwhile"}
    assert words[place] in section


def test_check_reaches_each_part_that_raises_them() -> None:
    """The command calls what looks at Spark, connections, folders, sources, sinks, gate, state and targets."""
    tree = ast.parse((ROOT / "src/onceonly/cli/check.py").read_text("utf-8"))
    calls = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert calls >= {
        "_check_spark", "_check_connection", "check_written_folders", "check_pipeline", "check_suites",
        "check_upstreams", "check_first_plan", "refuse_other_pipeline", "_check_targets",
        "_check_stores", "locate_tables",
    }  # fmt: skip
