"""The command line. Every command works on what the environment names (see `onceonly.settings`)."""

from __future__ import annotations

import click

from onceonly.cli.app import Cli
from onceonly.cli.check import check
from onceonly.cli.demo import demo
from onceonly.cli.describe import describe
from onceonly.cli.init import init
from onceonly.cli.jars import jars
from onceonly.cli.rewind import rewind
from onceonly.cli.run import run
from onceonly.cli.services import services
from onceonly.cli.settle import abort, approve, recover, resolve
from onceonly.cli.skip import skip
from onceonly.cli.state import state
from onceonly.cli.status import status
from onceonly.cli.sweep import sweep

HELP = """Exactly-once output for Spark batch jobs: stage, gate, commit, recover.

\b
Where things are, from the environment:
  ONCEONLY_HOME             state table, lake, embedded services (./.onceonly)
  ONCEONLY_STATE            path or URI of the state table ($ONCEONLY_HOME/state)
  ONCEONLY_SPOOL            rows of Kafka sinks until published ($ONCEONLY_HOME/spool)
  ONCEONLY_PROJECT          folder with dags/, jobs/ and schemas/ (the current one)
  ONCEONLY_DOCS             Data Docs of the gates ($ONCEONLY_HOME/docs)
  ONCEONLY_KAFKA_BOOTSTRAP  brokers (those of `onceonly services up`)
  SPARK_REMOTE              a Spark Connect server (else Spark runs in the process)

\b
Exit codes: 0 done or nothing to do, 1 nothing was published, 2 wrong input,
3 the outcome is not known (`onceonly recover` finds out), 4 a gate holds it for
a person, 5 `onceonly check` found what cannot be used, 130 Ctrl-C.
With --json, an error is {"error": class, "what": …, "why": …, "todo": …} on stdout.
"""


@click.group(cls=Cli, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.version_option(package_name="onceonly", message="%(version)s")
@click.pass_context
def main(ctx: click.Context, traceback: bool) -> None:
    ctx.meta["onceonly.traceback"] = traceback


for command in (
    init,
    run,
    status,
    describe,
    recover,
    check,
    approve,
    abort,
    resolve,
    rewind,
    skip,
    sweep,
    state,
    services,
    jars,
    demo,
):
    main.add_command(command)
