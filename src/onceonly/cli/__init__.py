"""The command line. Every command works on what the environment names (see `onceonly.settings`)."""

from __future__ import annotations

import click

from onceonly.cli.app import Cli
from onceonly.cli.commands import Commands

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
COMMANDS = Commands(  # where each is; the everyday ones first
    {
        "init": "init",
        "run": "run",
        "status": "status",
        "describe": "describe",
        "recover": "settle",
        "check": "check",
        "approve": "settle",
        "abort": "settle",
        "resolve": "settle",
        "rewind": "rewind",
        "skip": "skip",
        "sweep": "sweep",
        "state": "state",
        "services": "services",
        "jars": "jars",
        "demo": "demo",
    }
)


@click.group(cls=Cli, commands=COMMANDS, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.version_option(package_name="onceonly", message="%(version)s")
@click.pass_context
def main(ctx: click.Context, traceback: bool) -> None:
    ctx.meta["onceonly.traceback"] = traceback
