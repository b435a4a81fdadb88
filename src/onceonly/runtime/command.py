"""The command line of spark-submit. Secret settings are not on it: arguments are there for everyone to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceonly import redaction
from onceonly.runtime.jobs import program
from onceonly.runtime.target import Target
from onceonly.settings import Settings
from onceonly.spark.conf import conf
from onceonly.spark.home import spark_home


def spark_submit() -> str:
    return str(spark_home() / "bin" / "spark-submit")


def arguments(spark: Target, settings: Settings, step: str, program_arguments: Sequence[str]) -> list[str]:
    """Return the arguments for the program of `step` on that master, with the driver in spark-submit's own process."""
    deploy_mode = {"spark.submit.deployMode": "client"}  # whatever a spark-defaults.conf says
    return compose(spark.master, conf(settings) | spark.conf | deploy_mode, str(program(step)), program_arguments)


def compose(master: str, conf: Mapping[str, str], program: str, program_arguments: Sequence[str]) -> list[str]:
    """Return the arguments, without the secrets among the settings: see `properties`."""
    composed = ["--master", master]
    for key, value in redaction.public(conf).items():
        composed += ["--conf", f"{key}={value}"]
    return [*composed, program, *program_arguments]
