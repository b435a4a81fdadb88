"""A Spark that reaches a test's own S3 server: a session of the suite's server, told where it is and by what keys."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from integration.services.s3 import S3

from onceonly.settings import Settings
from onceonly.spark import jars, stores

FETCHED = not jars.list_missing(Settings.from_env().jars, "s3")
UNFETCHED = "the jars of S3 are missing: onceonly jars fetch s3"
HIDDEN = ("fs.s3a.access.key", "fs.s3a.secret.key")  # of a server that only this test run knows


def bucket(server: S3) -> str:
    """A new one. Of a bucket, Spark knows one server as long as it lives, and other tests have others of that name."""
    name = f"spark-{uuid.uuid4().hex[:12]}"
    (server.data / name).mkdir()
    return name


def session(address: str, env: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    made: Any = SparkSession.builder.remote(address).create()
    for name, value in stores.conf(Settings.from_env().jars, env).items():
        made.conf.set(name.removeprefix("spark.hadoop."), value)
    for name, value in zip(HIDDEN, (env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]), strict=True):
        made.conf.set(name, value)
    made.conf.set("spark.sql.session.timeZone", "UTC")
    return made
