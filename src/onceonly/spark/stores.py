"""How Spark reaches object stores: what it needs for each, and how it commits the files that it writes there.

Nothing here imports Spark.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.filesystems.paths import spark_uri
from onceonly.spark import azure, google, jvm, s3

STORES: tuple[ModuleType, ...] = (s3, azure, google)
CLOUD = "org.apache.spark.internal.io.cloud"  # of spark-hadoop-cloud, which the jars of each store have
PROTOCOL = ("spark.sql.sources.commitProtocolClass", f"{CLOUD}.PathOutputCommitProtocol")
PARQUET = {"spark.sql.parquet.output.committer.class": f"{CLOUD}.BindingParquetOutputCommitter"}


def conf(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Settings of Spark, but for those that spark-defaults.conf has. `base`: where the jars are."""
    found = {key: value for store in STORES for key, value in store.settings(base, env).items()}
    theirs = jvm.defaults(env)
    return {key: value for key, value in found.items() if not any(line.split()[:1] == [key] for line in theirs)}


def of(place: str) -> ModuleType | None:
    """The store of a path or URI; None: another storage."""
    scheme = urlsplit(spark_uri(place)).scheme.lower()
    return next((store for store in STORES if scheme in store.SCHEMES), None)


def committers(place: str) -> dict[str, str]:
    """The options of a write there, beside `PROTOCOL`; none: Spark's own way is right."""
    store = of(place)
    # The job's id, which the committers of Azure and Google ask for before Spark has told it.
    return {**store.COMMITTERS, **PARQUET, "spark.sql.sources.writeJobUUID": uuid.uuid4().hex} if store else {}


def jars(base: Path) -> list[str]:
    """Those that were fetched; one that several stores need, once."""
    found = {jar.name: str(jar) for store in STORES for jar in sorted((base / store.FOLDER).glob("*.jar"))}
    return list(found.values())


def notes(base: Path, places: Iterable[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """For people: whether Spark finds the jars of each store that a pipeline has a place on."""
    return [_note(store, base, env) for store in dict.fromkeys(map(of, places)) if store]


def _note(store: ModuleType, base: Path, env: Mapping[str, str]) -> str:
    if any((base / store.FOLDER).glob("*.jar")):
        return f"Spark's jars for {store.NAMED}: {base / store.FOLDER}"
    theirs = any(line.startswith("spark.jars") for line in jvm.defaults(env))
    todo = f"none, so only few records can be staged there: onceonly jars fetch {store.FOLDER}"
    return f"Spark's jars for {store.NAMED}: {'those in its spark-defaults.conf' if theirs else todo}"


def missing(error: Exception, what: str) -> InvalidPipeline | None:
    """What to tell if a Spark without the jars was asked for something on a store; None: the error is another one."""
    told = str(error)
    if PROTOCOL[1].removeprefix("org.apache.spark.") in told:  # which each store needs
        return _missing(what, "an object store", "s3, azure or google")
    store = next((store for store in STORES if any(words in told for words in store.MISSING)), None)
    return _missing(what, store.NAMED, store.FOLDER) if store else None


def _missing(what: str, named: str, folder: str) -> InvalidPipeline:
    return InvalidPipeline(
        what,
        f"A table or folder of it is on {named}, and Spark lacks jars for it. Without them, only a few Kafka "
        "records can be staged, and only into Delta tables.",
        f"onceonly jars fetch {folder}; for your own Spark, see docs/object-stores.md. Nothing was published.",
    )
