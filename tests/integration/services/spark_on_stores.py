"""A Spark that reaches a test's own object store: a session of the suite's server, told where the store is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from integration.services.store_server import StoreServer
from integration.services.stores import running

from onceonly.settings import Settings
from onceonly.spark import jars, stores

FOLDERS = {"s3": "s3", "az": "azure", "gs": "google"}  # of jars
# Of a server that only this test run knows: a session has no environment of its own.
LOGIN = {
    "fs.s3a.access.key": "AWS_ACCESS_KEY_ID",
    "fs.s3a.secret.key": "AWS_SECRET_ACCESS_KEY",
    "fs.azure.account.key.onceonlytests.dfs.core.windows.net": "AZURE_STORAGE_ACCOUNT_KEY",
}


def unfetched(store: StoreServer) -> str | None:
    """Why it cannot be reached; None: it can."""
    folder = FOLDERS[store.scheme]
    return (
        f"jars are missing: onceonly jars fetch {folder}"
        if jars.list_missing(Settings.from_env().jars, folder)
        else None
    )


@contextmanager
def reached(request: pytest.FixtureRequest, name: str) -> Iterator[StoreServer]:
    """That store, with a bucket of its own, where Spark has what it needs to reach it."""
    with running(request, name, by_spark=True) as made:
        if why := unfetched(made):
            pytest.skip(why)
        yield made


def emulated(store: StoreServer) -> dict[str, str]:
    """What Spark's connectors need to know of the emulators, and of no service."""
    if store.scheme == "az":
        return {
            "fs.azure.abfs.endpoint": urlsplit(store.environment["AZURITE_BLOB_STORAGE_URL"]).netloc,
            "fs.azure.always.use.https": "false",
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.fns.account.service.type": "BLOB",
        }
    if store.scheme == "gs":  # without the translator, which does not take uploads in pieces
        nobody = {"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.project.id": "none"}
        no_moves = {"fs.gs.operation.move.enable": "false"}  # it copies, and deletes
        return {"fs.gs.storage.root.url": f"http://127.0.0.1:{store.port}/", **nobody, **no_moves}
    return {}


def session(address: str, store: StoreServer) -> Any:
    from pyspark.sql import SparkSession

    made: Any = SparkSession.builder.remote(address).create()
    env = store.environment
    conf = stores.conf(Settings.from_env().jars, env)
    ours = {name.removeprefix("spark.hadoop."): value for name, value in conf.items()}
    known = {name: env[variable] for name, variable in LOGIN.items() if variable in env}
    for name, value in (ours | emulated(store) | known).items():
        made.conf.set(name, value)
    made.conf.set("spark.sql.session.timeZone", "UTC")
    return made
