"""The command line of spark-submit. Secret settings are not on it: arguments are there for everyone to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceonly import redaction
from onceonly.clusters.target import Target
from onceonly.runtime.jobs import program
from onceonly.settings import Settings
from onceonly.spark.conf import conf
from onceonly.spark.home import spark_home


def spark_submit() -> str:
    return str(spark_home() / "bin" / "spark-submit")


def arguments(spark: Target, settings: Settings, step: str, given: Sequence[str]) -> list[str]:
    """For the program of `step` on that master, with the driver in spark-submit's own process."""
    here = {"spark.submit.deployMode": "client"}  # whatever a spark-defaults.conf says
    return compose(spark.master, conf(settings) | spark.conf | here, str(program(step)), given)


def compose(master: str, conf: Mapping[str, str], program: str, given: Sequence[str]) -> list[str]:
    """The arguments, without the secrets among the settings: see `properties`."""
    pairs = [part for key, value in redaction.public(conf).items() for part in ("--conf", f"{key}={value}")]
    return ["--master", master, *pairs, program, *given]
