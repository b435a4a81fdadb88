"""How Spark reaches S3: by the environment variables by which delta-rs does, and the jars of `onceonly jars fetch s3`.

Nothing here imports Spark, and no setting is a secret: S3A finds the keys itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from onceonly.errors import InvalidPipeline
from onceonly.filesystems.paths import spark_uri
from onceonly.spark import jvm

# In errors of Spark. The last one is what it writes application state by, of spark-hadoop-cloud.
MISSING = ("S3AFileSystem not found", 'No FileSystem for scheme "s3a"', "internal.io.cloud.PathOutputCommitProtocol")
PREFIX = "spark.hadoop.fs.s3a."
# Hadoop's own list, with profiles and web identities. Spark passes keys of its environment to executors as the first
# two find them.
PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
)


def conf(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Settings of Spark, but for those that spark-defaults.conf has. `base`: where the jars are."""
    found = {f"{PREFIX}{name}": value for name, value in _settings(bool(jars(base)), env).items()}
    theirs = jvm.defaults(env)
    return {key: value for key, value in found.items() if not any(line.split()[:1] == [key] for line in theirs)}


def jars(base: Path) -> list[str]:
    """None where they were not fetched."""
    return sorted(str(jar) for jar in (base / "s3").glob("*.jar"))


def notes(base: Path, places: Iterable[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """For people: whether Spark finds the jars, where a pipeline has such a place."""
    if not any(spark_uri(place).startswith("s3a://") for place in places):
        return []
    if there := jars(base):
        return [f"Spark's jars for S3: {Path(there[0]).parent}"]
    theirs = any(line.startswith("spark.jars") for line in jvm.defaults(env))
    todo = "none, so only few records can be staged there: onceonly jars fetch s3"
    return [f"Spark's jars for S3: {'as its spark-defaults.conf has it' if theirs else todo}"]


def is_missing(error: Exception) -> bool:
    """Whether a Spark without the jars was asked for something on S3."""
    return any(words in str(error) for words in MISSING)


def missing(what: str) -> InvalidPipeline:
    return InvalidPipeline(
        what,
        "A table or folder of it is on S3, and Spark lacks jars for s3a://. Only few records of Kafka, into a Delta "
        "table, are staged without.",
        "onceonly jars fetch s3; for a Spark of your own, see docs/object-stores.md. Nothing was published.",
    )


def _settings(ours: bool, env: Mapping[str, str]) -> dict[str, str]:
    """`ours`: the jars are those that we know."""
    endpoint, region = env.get("AWS_ENDPOINT_URL"), env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    by_host = env.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
    return {
        **({"endpoint": endpoint, "path.style.access": str(not by_host).lower()} if endpoint else {}),
        **({"endpoint.region": region} if region else {}),
        **({"aws.credentials.provider": ",".join(PROVIDERS)} if ours else {}),
    }
