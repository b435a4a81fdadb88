"""How Spark reaches Azure: by the variables by which delta-rs does, and the jars of `onceonly jars fetch azure`.

Nothing here imports Spark. No setting is a secret: Hadoop looks the key up in the environment of each process
of Spark. Any other way to log in has to be said in Spark's own configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from onceonly.filesystems.azure_names import HOST, KEY, LONG, NAME

FOLDER, NAMED = "azure", "Azure"
SCHEMES = LONG
PREFIX = "spark.hadoop.fs.azure."
MISSING = ("AzureBlobFileSystem not found", 'No FileSystem for scheme "abfs')
# Each task writes where no other one does, and leaves a list of its files; the driver moves those of all lists.
COMMITTER = "org.apache.hadoop.fs.azurebfs.commit.AzureManifestCommitterFactory"
COMMITTERS = {f"mapreduce.outputcommitter.factory.scheme.{scheme}": COMMITTER for scheme in LONG}


def settings(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Settings of Spark. `base`: where the jars are."""
    account = env.get(NAME)
    if not account or not env.get(KEY) or not any((base / FOLDER).glob("*.jar")):
        return {}
    return {f"{PREFIX}account.key.{account}.{HOST}": f"${{env.{KEY}}}"}
