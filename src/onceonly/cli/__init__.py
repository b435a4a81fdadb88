"""The command line. Every command works on what the environment names (see `onceonly.settings`)."""

from __future__ import annotations

import gc

gc.set_threshold(100_000)  # what is imported stays: to look through it again and again takes a tenth of the start

import click  # noqa: E402

from onceonly.cli.app import Cli, Commands  # noqa: E402
from onceonly.settings import Settings  # noqa: E402

MAIN_HELP = "Exactly-once output for Spark batch jobs: stage, gate, commit, recover."
EPILOG = """\b
Settings: onceonly help settings. Pages: onceonly help PAGE, or onceonly help.

\b
Exit codes: 0 done or nothing to do, 1 nothing was published, 2 invalid input,
3 unknown outcome (`onceonly recover`), 4 a person has to act, 5 a check found
a problem, 6 a verification is wrong, 7 it cannot be known, 8 a broken promise,
130 Ctrl-C. With --json, an error is {"error", "code", "what", "why", "todo"}.
"""
COMMANDS = Commands(  # where each is; the everyday ones first
    {
        "init": "project_files",
        "run": "run",
        "status": "status",
        "describe": "describe",
        "explain": "app",
        "lineage": "describe",
        "metrics": "status",
        "recover": "recover",
        "check": "check",
        "verify": "verify",
        "probe": "probe",
        "infer": "project_files",
        "approve": "manual",
        "abort": "manual",
        "resolve": "manual",
        "repair": "repair",
        "accept-loss": "accept_loss",
        "rewind": "position",
        "skip": "position",
        "adopt": "adopt",
        "sweep": "recover",
        "forget": "recover",
        "state": "state",
        "services": "services",
        "jars": "jars",
        "demo": "services",
        "help": "help",
        "completions": "help",
    }
)
WITHOUT_STORES = ("completions", "explain", "help", "init", "jars", "services")  # commands that read no object store


@click.group(
    cls=Cli,
    commands=COMMANDS,
    help=MAIN_HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.version_option(package_name="onceonly", message="%(version)s")
@click.pass_context
def main(ctx: click.Context, traceback: bool) -> None:
    ctx.meta["onceonly.traceback"] = traceback
    settings = Settings.from_env()
    if settings.store_connections and ctx.invoked_subcommand not in WITHOUT_STORES:
        from onceonly.cli import connections
        from onceonly.storage import logins

        logins.use_connections(settings.store_connections, connections.read_store_connection)
