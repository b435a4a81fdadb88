"""Settings by which Spark reaches Azure: from the variables that delta-rs reads, and `onceonly jars fetch azure`.

Nothing here imports Spark. No setting is a secret: Hadoop looks the key up in the environment of each process
of Spark. Any other way to log in has to be said in Spark's own configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from onceonly.storage.logins import AZURE_KEY
from onceonly.storage.paths import AZURE_ACCOUNT, AZURE_HOST, AZURE_LONG_SCHEMES

FOLDER, DISPLAY_NAME = "azure", "Azure"
SCHEMES = AZURE_LONG_SCHEMES
PREFIX = "spark.hadoop.fs.azure."
MISSING_JAR_ERRORS = ("AzureBlobFileSystem not found", 'No FileSystem for scheme "abfs')
# Each task writes where no other one does, and leaves a list of its files; the driver moves those of all lists.
COMMITTER = "org.apache.hadoop.fs.azurebfs.commit.AzureManifestCommitterFactory"
COMMITTERS = {f"mapreduce.outputcommitter.factory.scheme.{scheme}": COMMITTER for scheme in AZURE_LONG_SCHEMES}


def settings(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings of Spark.

    Args:
        base: the folder of the jars.
    """
    account = env.get(AZURE_ACCOUNT)
    if not account or not env.get(AZURE_KEY) or not any((base / FOLDER).glob("*.jar")):
        return {}
    return {f"{PREFIX}account.key.{account}.{AZURE_HOST}": f"${{env.{AZURE_KEY}}}"}
