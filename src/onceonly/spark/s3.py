"""How Spark reaches S3: by the environment variables by which delta-rs does, and the jars of `onceonly jars fetch s3`.

Nothing here imports Spark, and no setting is a secret: S3A finds the keys itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER, NAMED = "s3", "S3"
SCHEMES = ("s3a",)
MISSING = ("S3AFileSystem not found", 'No FileSystem for scheme "s3a"')
# S3 has no rename. Spark's usual committer would copy each file twice, and a task that was given up could still copy
# its files beside those of the one that took its place. S3A's own completes uploads: of each task, those of one try.
COMMITTERS = {
    "fs.s3a.committer.name": "magic",
    "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
}
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


def settings(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Settings of Spark. `base`: where the jars are."""
    ours = any((base / FOLDER).glob("*.jar"))
    return {f"{PREFIX}{name}": value for name, value in _settings(ours, env).items()}


def keys(env: Mapping[str, str]) -> dict[str, str]:
    """The keys of that environment as settings of Spark, which are secret: for a Spark that has another environment."""
    given = {
        "access.key": "AWS_ACCESS_KEY_ID",
        "secret.key": "AWS_SECRET_ACCESS_KEY",
        "session.token": "AWS_SESSION_TOKEN",
    }
    return {f"{PREFIX}{name}": env[variable] for name, variable in given.items() if env.get(variable)}


def _settings(ours: bool, env: Mapping[str, str]) -> dict[str, str]:
    """`ours`: the jars are those that we know."""
    endpoint, region = env.get("AWS_ENDPOINT_URL"), env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    by_host = env.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
    return {
        **({"endpoint": endpoint, "path.style.access": str(not by_host).lower()} if endpoint else {}),
        **({"endpoint.region": region} if region else {}),
        **({"aws.credentials.provider": ",".join(PROVIDERS)} if ours else {}),
    }
