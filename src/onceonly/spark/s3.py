"""Settings by which Spark reaches S3: from the variables that delta-rs reads, and the jars of `onceonly jars fetch s3`.

Nothing here imports Spark, and no setting is a secret: S3A finds the keys itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER, DISPLAY_NAME = "s3", "S3"
SCHEMES = ("s3a",)
MISSING_JAR_ERRORS = ("S3AFileSystem not found", 'No FileSystem for scheme "s3a"')
# S3 has no rename. Spark's usual committer would copy each file twice, and a task that was given up could still copy
# its files beside those of the one that took its place. S3A's own completes uploads: of each task, those of one try.
COMMITTERS = {
    "fs.s3a.committer.name": "magic",
    "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
}
PREFIX = "spark.hadoop.fs.s3a."
KEYS = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
}
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
    """Return settings of Spark.

    Args:
        base: the folder of the jars.
    """
    has_fetched_jars = any((base / FOLDER).glob("*.jar"))
    return {f"{PREFIX}{name}": value for name, value in _settings_of_s3a(has_fetched_jars, env).items()}


def keys(env: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of that environment as settings of Spark: for a Spark that has another environment.

    They are secret.
    """
    settings = {}
    for variable, name in KEYS.items():
        if env.get(variable):
            settings[f"{PREFIX}{name}"] = env[variable]
    return settings


def _settings_of_s3a(has_fetched_jars: bool, env: Mapping[str, str]) -> dict[str, str]:
    """Return settings without PREFIX. Providers are named only to jars that are known, which are the fetched ones."""
    settings: dict[str, str] = {}
    endpoint = env.get("AWS_ENDPOINT_URL")
    if endpoint:
        is_virtual_hosted = env.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
        settings["endpoint"] = endpoint
        settings["path.style.access"] = str(not is_virtual_hosted).lower()
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    if region:
        settings["endpoint.region"] = region
    if has_fetched_jars:
        settings["aws.credentials.provider"] = ",".join(PROVIDERS)
    return settings
