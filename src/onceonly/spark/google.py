"""Settings by which Spark reaches Google Cloud Storage: from a key file, as delta-rs, and `onceonly jars fetch google`.

Nothing here imports Spark, and no setting is a secret: the key file is named, not read. Where none is, Google's usual
chain counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from onceonly.storage.logins import find_google_key_file
from onceonly.storage.paths import GOOGLE_SCHEMES as SCHEMES

__all__ = ["COMMITTERS", "DISPLAY_NAME", "FOLDER", "MISSING_JAR_ERRORS", "SCHEMES", "settings"]

FOLDER, DISPLAY_NAME = "google", "Google Cloud Storage"
PREFIX = "spark.hadoop.fs.gs."
MISSING_JAR_ERRORS = ("GoogleHadoopFileSystem not found", 'No FileSystem for scheme "gs"')
COMMITTER = "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory"
COMMITTERS = {"mapreduce.outputcommitter.factory.scheme.gs": COMMITTER}
MIB = 1 << 20
SIZES_IN_BYTES = {  # Hadoop's own defaults are texts like 64m, for a connector of its own that reads them so
    "block.size": 64 * MIB,
    "inputstream.inplace.seek.limit": 8 * MIB,
    "inputstream.min.range.request.size": 2 * MIB,
    "outputstream.buffer.size": 8 * MIB,
    "rewrite.max.chunk.size": 512 * MIB,
}

# The connector was compiled for an older Hadoop, of which it calls a method by these reads that is no longer there.
PARQUET = {"spark.hadoop.parquet.hadoop.vectored.io.enabled": "false"}


def settings(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings of Spark; none without jars: then it is left as its own configuration has it.

    Args:
        base: the folder of the jars.
    """
    if not any((base / FOLDER).glob("*.jar")):
        return {}
    file = find_google_key_file(env)
    login = {"auth.type": "APPLICATION_DEFAULT"}
    if file:
        login = {"auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "auth.service.account.json.keyfile": str(file)}
    options = {"impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem", **login, **SIZES_IN_BYTES}
    return {**{f"{PREFIX}{name}": str(value) for name, value in options.items()}, **PARQUET}
