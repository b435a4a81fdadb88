"""What people are told to run loses nothing: each command in a message, with the state in which it was followed.

A message that names another command fails here, until somebody has followed it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceonly import error_codes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "onceonly"
OWN = re.compile(r"\bonceonly ((?:state )?[a-z][a-z-]+)((?: FILE\.py:NAME)?(?: [^.,;:)\n]*)?)")
OTHERS = {  # other programs and words, by what people are told to do with them
    "kafka-transactions describe-producers": r"kafka-transactions --bootstrap-server … describe-producers",
    "kafka-transactions abort": r"kafka-transactions --bootstrap-server … abort",
    "kafka-topics --create": r"kafka-topics --create",
    "kafka-acls --add": r"kafka-acls --bootstrap-server … --add --allow-principal",
    "kafka-features upgrade": r"kafka-features upgrade --feature",
    "airflow backfill create": r"airflow backfill create",
    "airflow dags unpause": r"airflow dags unpause \{\}",
    "airflow dags pause": r"airflow dags pause \{\}",
    "airflow dags trigger": r"airflow dags trigger \{\}",
    "airflow tasks clear": r"airflow tasks clear \{\} --yes",
    "airflow variables delete": r"airflow variables delete \{\}",
    "airflow connections add": r"airflow connections add \{\} (?:--conn-type generic|\{\})",
    "airflow connections get": r"airflow connections get",
    "ALTER TABLE UNSET": r"ALTER TABLE … UNSET TBLPROPERTIES",
    "ALTER TABLE ADD": r"\(use ALTER TABLE\)",
    "ALTER TABLE SET": r"ALTER TABLE … SET TBLPROPERTIES",
    "CREATE TABLE": r"CREATE TABLE \{\} \(…\)",
    "kubectl logs": r"kubectl logs -n",
    "chown": r"chown to that user",
    "onceonly recover --force": r"use --force if you know that it has ended",
}
OTHER = re.compile("|".join(f"(?P<_{number}>{pattern})" for number, pattern in enumerate(OTHERS.values())))
UNKNOWN = re.compile(
    r"(?<![\w./])kafka-(?!python)[a-z]+(?:-[a-z]+)*"
    r"|(?<!\.)\b(?:hdfs|hadoop|aws|gsutil|gcloud|az|kubectl|docker|psql|airflow|spark-sql) [a-z0-9]+ -*[a-z0-9]+"
    r"|\b(?:RESTORE|REORG|REPAIR|DROP|TRUNCATE|UPDATE|VACUUM|ALTER|CREATE) TABLE\b(?=.)|\bDELETE FROM\b"
    r"|\b(?:rm|mv|dd|chmod|sudo|systemctl) (?:-|[a-z0-9]+ )|\b(?:use|with|add) --[a-z][a-z-]+"
)
LOOKING = {  # they change nothing that was published or staged, or set up this machine alone
    *(
        "onceonly status",
        "onceonly describe",
        "onceonly explain",
        "onceonly check",
        "onceonly probe",
        "onceonly probe --workers",
        "onceonly jars",
        "onceonly services",
        "onceonly demo",
        "onceonly help",
        "onceonly completions",
        "airflow connections get",
    ),
}
NOTHING = "nothing"


@dataclass(frozen=True)
class Followed:
    """Advice that was followed.

    Args:
        state: in which a message gives it.
        test: that follows it, or a command of which this is the method; by file and name.
        lost: what was lost.
    """

    state: str
    test: str
    lost: str = NOTHING


COORDINATOR, CLI, SINKS = "tests/unit/coordinator/", "tests/unit/cli/test_cli.py::", "tests/unit/sinks/"
ADVISED = "tests/integration/airflow/test_advised_commands.py::"
NAMED = "the rows that the message names, and a person has given up: they stay in the source"

ADVICE: dict[str, Followed] = {
    # ---- settled by evidence
    "onceonly recover": Followed(
        "each state that a process can leave behind, by a sample of every schedule",
        f"{COORDINATOR}test_coordinator.py::test_recovery_settles_whatever_a_dead_owner_left",
    ),
    "onceonly recover --force": Followed(
        "an owner that cannot be asked whether it is alive; one that is alive is fenced, and stages again",
        f"{CLI}test_recover_leaves_a_living_owner_alone_until_forced",
    ),
    # ---- before the decision
    **dict.fromkeys(
        ("onceonly approve", "onceonly approve --reason"),
        Followed(
            "held by its gate",
            f"{COORDINATOR}test_manual_actions.py::test_an_approval_belongs_to_the_attempt_that_was_seen",
        ),
    ),
    "onceonly abort": Followed(
        "held by its gate, or refused by its rehearsal; it is planned and staged again",
        f"{COORDINATOR}test_rehearsal.py::test_refused_checkpoint_can_be_aborted",
    ),
    "onceonly abort --reason": Followed(
        "its rows were damaged in three attempts, its topic or cluster is another one, or its outcome is in doubt",
        f"{COORDINATOR}test_rehearsal.py::test_staging_again_is_bounded",
    ),
    "onceonly run": Followed(
        "an attempt was aborted, and nobody stages it again",
        f"{COORDINATOR}test_rehearsal.py::test_recovery_aborts_what_nobody_stages_again",
    ),
    "onceonly run --interval": Followed(
        "a gap", f"{COORDINATOR}test_gaps.py::test_what_is_on_its_way_is_covered_and_closes_the_gap"
    ),
    "onceonly run --keep --reason --reprocess": Followed(
        "a sink cannot retract the rows that are to be replaced",
        f"{COORDINATOR}test_repairs.py::test_kept_rows_stay_and_the_others_are_replaced",
    ),
    # ---- after the decision
    "onceonly resolve": Followed(
        "a sink waits to be published", f"{CLI}test_resolve_shows_the_checkpoint_and_records_who_gave_up_and_why", NAMED
    ),
    "onceonly resolve --give-up --reason": Followed(
        "a decided checkpoint whose target or staged rows no longer exist; what is published after all is recorded so",
        f"{COORDINATOR}test_schedules.py::test_a_committer_that_hangs_publishes_nothing_after_its_sink_was_given_up",
        NAMED,
    ),
    "onceonly resolve --give-up --gone --reason": Followed(
        "the same, and the target does not answer",
        f"{CLI}test_resolve_shows_the_checkpoint_and_records_who_gave_up_and_why",
        NAMED,
    ),
    "onceonly resolve --give-up --reason --removed": Followed(
        "a rewind that a sink cannot carry out; its rows were removed by hand",
        f"{COORDINATOR}test_target_history.py::test_a_lost_rewind_needs_its_rows_removed",
        NAMED,
    ),
    "onceonly resolve --committed --reason": Followed(
        "in doubt: nothing shows how a transaction ended",
        f"{COORDINATOR}test_coordinator.py::test_a_persons_word_ends_the_doubt",
    ),
    "onceonly resolve --aborted --reason": Followed(
        "in doubt, and none of its rows are there: they are published again; refused where evidence exists",
        f"{COORDINATOR}test_coordinator.py::test_a_persons_word_ends_the_doubt",
    ),
    # ---- targets that went back
    "onceonly repair --reason": Followed(
        "a restored or missing target, of a pipeline by intervals and of a chain; also brought back half way",
        f"{COORDINATOR}test_lost_targets.py::test_a_repair_is_made_for_each_lost_checkpoint_oldest_first",
    ),
    "onceonly repair --dry-run": Followed(
        "what a sink lacks is looked at",
        f"{COORDINATOR}test_lost_targets.py::test_it_shows_what_the_sink_lacks_and_changes_nothing",
    ),
    "onceonly repair --reason --removed": Followed(
        "a rewind is missing in its target",
        f"{COORDINATOR}test_lost_targets.py::test_what_was_rewound_is_not_repaired",
    ),
    "onceonly repair --again --reason": Followed(
        "the same of a topic, whose readers may have read the rows before",
        f"{COORDINATOR}test_lost_targets.py::test_a_topic_is_repaired_where_a_person_says_so",
    ),
    "onceonly repair --partly --reason": Followed(
        "retention has taken the records of some",
        f"{COORDINATOR}test_lost_targets.py::test_the_others_are_repaired_alone",
        NAMED,
    ),
    "onceonly run --reason": Followed(
        "a sink was given up",
        f"{COORDINATOR}test_repairs.py::test_what_a_sink_was_given_up_is_completed",
    ),
    "onceonly run --again --epoch --only --reason": Followed(
        "a sink was given up while its target did not answer, and a person has found out that the rows are not there",
        f"{COORDINATOR}test_rows_unclear.py::test_they_are_written_where_a_person_says_that_they_are_not_there",
    ),
    "onceonly accept-loss --reason": Followed(
        "a restored or missing target, of one sink and of three; also brought back half way",
        f"{COORDINATOR}test_target_history.py::test_an_accepted_loss_is_recorded_and_the_sink_goes_on",
        NAMED,
    ),
    "onceonly accept-loss --reason --removed": Followed(
        "a rewind is missing in its target",
        f"{COORDINATOR}test_target_history.py::test_a_lost_rewind_needs_its_rows_removed",
    ),
    "onceonly rewind --reason": Followed(
        "the state at an epoch no longer exists, or a run of the state is missing",
        f"{COORDINATOR}test_rewind.py::test_later_rows_are_taken_back_and_read_again",
    ),
    # ---- what cannot be read
    "onceonly skip --interval --reason": Followed(
        "a gap, or an aborted interval whose records expired",
        f"{COORDINATOR}test_gaps.py::test_an_aborted_interval_whose_records_expired_is_skipped",
        NAMED,
    ),
    "onceonly skip --partition --reason --to --topic": Followed(
        "records expired before they were read, with and without an aborted checkpoint",
        f"{COORDINATOR}test_skip_offsets.py::test_what_expired_before_it_was_read_can_be_left_out",
        NAMED,
    ),
    "onceonly adopt --checkpoint --table": Followed(
        "the last batch of a query to take over from is not in the pipeline's own tables",
        f"{CLI.replace('test_cli', 'test_adopt_command')}test_table_can_be_named",
    ),
    # ---- the state table
    **dict.fromkeys(
        ("onceonly state forward", "onceonly state forward --decision --reason"),
        Followed(
            "a state table that was restored from an older copy",
            f"{COORDINATOR}test_restore_check.py::test_the_command_in_the_message_goes_on_with_every_row_once",
        ),
    ),
    "onceonly state init": Followed(
        "there has never been a state table; targets of another one are refused afterwards",
        f"{COORDINATOR}test_restore_check.py::test_a_table_that_somebody_has_placed_is_made_by_state_init_alone",
    ),
    "onceonly state relocate": Followed("a moved state table", f"{CLI}test_a_moved_table_is_refused_until_relocated"),
    "onceonly state fork": Followed(
        "a copy of a state table", f"{CLI}test_a_copy_is_forked_only_when_nothing_in_it_is_open"
    ),
    # ---- other programs
    "kafka-transactions abort": Followed(
        "the brokers lost the marker of a transaction in every partition; it is written again from its spool",
        "tests/integration/kafka/test_kafka_network.py::test_a_broker_dies_over_the_end_of_a_transaction",
    ),
    "kafka-topics --create": Followed(
        "the topic of staged rows no longer exists: they are staged again",
        f"{SINKS}test_kafka_rehearsal.py::test_recreated_topic_is_staged_for_again",
    ),
    "kafka-acls --add": Followed(
        "the brokers do not allow this client what a run needs",
        "tests/integration/cli/test_check_finds.py::test_a_missing_grant_is_found",
    ),
    "airflow backfill create": Followed(
        "a gap", "tests/unit/airflow/test_dag_intervals.py::test_after_an_outage_every_interval_has_its_run"
    ),
    "airflow dags unpause": Followed(
        "an approval waits for a recovery DAG that is paused",
        "tests/integration/airflow/test_approval.py::test_a_paused_recovery_is_told_before",
    ),
    "airflow dags pause": Followed(
        "a pipeline whose DAG was renamed; the old one is hidden, as its file is gone",
        f"{ADVISED}test_hidden_dag_of_a_renamed_pipeline_is_paused",
    ),
    "airflow dags trigger": Followed(
        "an interval to be run, by its conf; or the recovery DAG: it settles what is to be settled",
        "tests/integration/airflow/test_run_for_a_date.py::test_ways_that_work_beside_a_refused_run",
    ),
    "airflow tasks clear": Followed(
        "a run whose plan has left no epoch", f"{ADVISED}test_task_of_a_run_without_an_epoch_is_cleared"
    ),
    "airflow variables delete": Followed(
        "the id of the Airflow was damaged; the next plan makes another one",
        f"{ADVISED}test_damaged_id_of_the_installation_is_deleted",
    ),
    "ALTER TABLE UNSET": Followed(
        "a table that deletes transaction identifiers",
        f"{SINKS}test_delta_owner_settings.py::test_evidence_that_is_kept_again_is_enough",
    ),
    "ALTER TABLE ADD": Followed(
        "a table that delta-rs cannot write lacks a column",
        "tests/integration/sinks/test_delta_columns.py::test_a_table_beyond_delta_rs_is_altered_by_a_person",
    ),
    "ALTER TABLE SET": Followed(
        "a column would become wider, or changes are to be read",
        "tests/integration/sinks/test_delta_columns.py::test_the_commit_widens_a_column_once_and_not_the_stage",
    ),
}
LOOKING |= {"kafka-transactions describe-producers", "kubectl logs"}
PREPARING = {  # for what does not exist yet, or for processes of the future
    *("kafka-features upgrade", "onceonly init --name", "airflow connections add", "CREATE TABLE", "chown"),
}


def texts(path: Path) -> Iterator[str]:
    """Every text of a module that is no docstring; "{}" stands for what is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def commands(text: str) -> Iterator[str]:
    """Those in a text, by what they do: a command of ours with its options, or another program."""
    for found in OWN.finditer(text):
        options = sorted(set(re.findall(r"--[a-z-]+", found[2])) - {"--seen", "--json", "--spark"})
        yield " ".join([f"onceonly {found[1]}", *options])
    names = list(OTHERS)
    for found in OTHER.finditer(text):
        yield names[int(str(found.lastgroup)[1:])]
    rest = OTHER.sub("", OWN.sub("", text))
    yield from (found[0] for found in UNKNOWN.finditer(rest))


def advised() -> dict[str, str]:
    """Command -> a place that tells people to run it."""
    in_messages = {
        command: f"{path.relative_to(SOURCE)}: {text[:80]}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "dev"  # the demo's own broker and tables
        for text in texts(path)
        if text not in error_codes.read_catalogue()
        for command in commands(text)
    }
    in_explanations = {
        command: f"explanation of {explanation.code}"
        for explanation in error_codes.read_catalogue().values()
        for command in commands(explanation.do)
    }
    return in_messages | in_explanations


def test_every_command_in_a_message_was_followed() -> None:
    told = advised()
    assert {command: place for command, place in told.items() if command not in {*ADVICE, *LOOKING, *PREPARING}} == {}
    assert {*ADVICE, *LOOKING, *PREPARING} - set(told) == set(), "nobody is told this any more"


@pytest.mark.parametrize("command", ADVICE)
def test_followed_advice_lost_nothing(command: str) -> None:
    """By a test that exists; what a person gives up on purpose is named by the message itself."""
    advice = ADVICE[command]
    assert advice.lost in (NOTHING, NAMED)
    file, _, name = advice.test.partition("::")
    functions = {
        node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert name in functions, f"{file} has no {name}"


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("Remove them: kafka-delete-records --offset-json-file x", "kafka-delete-records"),
        ("Then: onceonly resolve {} --give-up {} --force", "onceonly resolve --force --give-up"),
        ("RESTORE TABLE {} TO VERSION AS OF {}", "RESTORE TABLE"),
        ("Or: hdfs dfs --rm {}", "hdfs dfs --rm"),
    ],
)
def test_new_command_is_noticed(message: str, command: str) -> None:
    assert [found for found in commands(message) if found not in {*ADVICE, *LOOKING, *PREPARING}] == [command]
