"""Settings by which Spark reaches object stores, and commits the files that it writes there.

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
from onceonly.spark import azure, google, jvm, s3
from onceonly.storage.paths import spark_uri

STORES: tuple[ModuleType, ...] = (s3, azure, google)
CLOUD = "org.apache.spark.internal.io.cloud"  # of spark-hadoop-cloud, which the jars of each store have
PROTOCOL = ("spark.sql.sources.commitProtocolClass", f"{CLOUD}.PathOutputCommitProtocol")
PARQUET = {"spark.sql.parquet.output.committer.class": f"{CLOUD}.BindingParquetOutputCommitter"}


def conf(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings of Spark, but for those that spark-defaults.conf has.

    Args:
        base: the folder of the jars.
    """
    settings: dict[str, str] = {}
    for store in STORES:
        settings |= store.settings(base, env)
    default_keys = [line.split()[:1] for line in jvm.defaults(env)]
    return {key: value for key, value in settings.items() if [key] not in default_keys}


def find_store(place: str) -> ModuleType | None:
    """Return the module of the store that a path or URI is on; None: another storage."""
    scheme = urlsplit(spark_uri(place)).scheme.lower()
    for store in STORES:
        if scheme in store.SCHEMES:
            return store
    return None


def committers(place: str) -> dict[str, str]:
    """Return the options of a write there, beside `PROTOCOL`; none: Spark's own way is right."""
    store = find_store(place)
    if store is None:
        return {}
    # The job's id, which the committers of Azure and Google ask for before Spark has told it.
    return {**store.COMMITTERS, **PARQUET, "spark.sql.sources.writeJobUUID": uuid.uuid4().hex}


def jars(base: Path) -> list[str]:
    """Return the jars that were fetched; one that several stores need, once."""
    jars_by_name: dict[str, str] = {}
    for store in STORES:
        for jar in sorted((base / store.FOLDER).glob("*.jar")):
            jars_by_name[jar.name] = str(jar)
    return list(jars_by_name.values())


def notes(base: Path, places: Iterable[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """Return notes for people: whether Spark finds the jars of each store that a pipeline has a place on."""
    stores = dict.fromkeys(map(find_store, places))  # each once
    return [_note(store, base, env) for store in stores if store]


def _note(store: ModuleType, base: Path, env: Mapping[str, str]) -> str:
    if any((base / store.FOLDER).glob("*.jar")):
        origin = f"{base / store.FOLDER}"
    elif any(line.startswith("spark.jars") for line in jvm.defaults(env)):
        origin = "those in its spark-defaults.conf"
    else:
        origin = f"none, so only few records can be staged there: onceonly jars fetch {store.FOLDER}"
    return f"Spark's jars for {store.DISPLAY_NAME}: {origin}"


def missing(error: Exception, what: str) -> InvalidPipeline | None:
    """Return the error of a Spark that was asked for something on a store without its jars; None: it is another one."""
    text = str(error)
    if PROTOCOL[1].removeprefix("org.apache.spark.") in text:  # which each store needs
        return _refuse_missing_jars(what, "an object store", "s3, azure or google")
    for store in STORES:
        if any(words in text for words in store.MISSING_JAR_ERRORS):
            return _refuse_missing_jars(what, store.DISPLAY_NAME, store.FOLDER)
    return None


def _refuse_missing_jars(what: str, store: str, folder: str) -> InvalidPipeline:
    return InvalidPipeline(
        what,
        f"A table or folder of it is on {store}, and Spark lacks jars for it. Without them, only a few Kafka "
        "records can be staged, and only into Delta tables.",
        f"onceonly jars fetch {folder}; for your own Spark, see docs/object-stores.md. Nothing was published.",
    )
