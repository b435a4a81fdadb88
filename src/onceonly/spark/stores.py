"""Settings by which Spark reaches object stores, and commits the files that it writes there.

They come from the variables that delta-rs reads, and count for the jars of `onceonly jars fetch STORE`. Nothing here
imports Spark, and no setting is a secret: S3A and Azure's driver look keys up in the environment of each process of
Spark, and Google's reads the key file. Any other way to log in has to be said in Spark's own configuration.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.spark import jvm
from onceonly.storage.logins import AZURE_KEY, find_google_key_file
from onceonly.storage.paths import AZURE_ACCOUNT, AZURE_HOST, AZURE_LONG_SCHEMES, GOOGLE_SCHEMES, spark_uri

CLOUD = "org.apache.spark.internal.io.cloud"  # of spark-hadoop-cloud, which the jars of each store have
PROTOCOL = ("spark.sql.sources.commitProtocolClass", f"{CLOUD}.PathOutputCommitProtocol")
PARQUET_COMMITTER = {"spark.sql.parquet.output.committer.class": f"{CLOUD}.BindingParquetOutputCommitter"}

S3_PREFIX = "spark.hadoop.fs.s3a."
S3_KEYS = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
}
# Hadoop's own list, with profiles and web identities. Spark passes keys of its environment to executors as the first
# two find them.
S3_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
)
AZURE_PREFIX = "spark.hadoop.fs.azure."
# Each task writes where no other one does, and leaves a list of its files; the driver moves those of all lists.
AZURE_COMMITTER = "org.apache.hadoop.fs.azurebfs.commit.AzureManifestCommitterFactory"
GOOGLE_PREFIX = "spark.hadoop.fs.gs."
GOOGLE_COMMITTER = "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory"
MIB = 1 << 20
GOOGLE_SIZES_IN_BYTES = {  # Hadoop's own defaults are texts like 64m, for a connector of its own that reads them so
    "block.size": 64 * MIB,
    "inputstream.inplace.seek.limit": 8 * MIB,
    "inputstream.min.range.request.size": 2 * MIB,
    "outputstream.buffer.size": 8 * MIB,
    "rewrite.max.chunk.size": 512 * MIB,
}
# The connector was compiled for an older Hadoop, of which it calls a method by these reads that is no longer there.
GOOGLE_PARQUET = {"spark.hadoop.parquet.hadoop.vectored.io.enabled": "false"}


@dataclass(frozen=True, eq=False)  # each is one object
class Store:
    """A kind of object store, as Spark knows it.

    Args:
        folder: of its jars, below that of all jars; what `onceonly jars fetch` calls it.
        display_name: for people.
        schemes: of Spark's URIs on it.
        missing_jar_errors: parts of the errors of a Spark that lacks its jars.
        committers: options by which Spark commits files there.
        make_settings: folder of all jars, environment -> settings of Spark.
    """

    folder: str
    display_name: str
    schemes: tuple[str, ...]
    missing_jar_errors: tuple[str, ...]
    committers: Mapping[str, str]
    make_settings: Callable[[Path, Mapping[str, str]], dict[str, str]]


def _has_jars(base: Path, folder: str) -> bool:
    """Return whether jars of a store were fetched into its folder below `base`."""
    return any((base / folder).glob("*.jar"))


def _s3_settings(base: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return settings of S3A. Providers are named only to jars that are known, which are the fetched ones."""
    settings: dict[str, str] = {}
    endpoint = env.get("AWS_ENDPOINT_URL")
    if endpoint:
        is_virtual_hosted = env.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
        settings["endpoint"] = endpoint
        settings["path.style.access"] = str(not is_virtual_hosted).lower()
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    if region:
        settings["endpoint.region"] = region
    if _has_jars(base, "s3"):
        settings["aws.credentials.provider"] = ",".join(S3_PROVIDERS)
    return _add_prefix(S3_PREFIX, settings)


def _azure_settings(base: Path, env: Mapping[str, str]) -> dict[str, str]:
    account = env.get(AZURE_ACCOUNT)
    if not account or not env.get(AZURE_KEY) or not _has_jars(base, "azure"):
        return {}
    return {f"{AZURE_PREFIX}account.key.{account}.{AZURE_HOST}": f"${{env.{AZURE_KEY}}}"}


def _google_settings(base: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return settings; none without jars: then Spark is left as its own configuration has it.

    The key file is named, not read. Where none is, Google's usual chain counts.
    """
    if not _has_jars(base, "google"):
        return {}
    file = find_google_key_file(env)
    login = {"auth.type": "APPLICATION_DEFAULT"}
    if file:
        login = {"auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "auth.service.account.json.keyfile": str(file)}
    options = {"impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem", **login, **GOOGLE_SIZES_IN_BYTES}
    return {**_add_prefix(GOOGLE_PREFIX, options), **GOOGLE_PARQUET}


def _add_prefix(prefix: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Return the settings as texts, with the prefix before each name."""
    return {f"{prefix}{name}": str(value) for name, value in settings.items()}


S3 = Store(
    "s3",
    "S3",
    ("s3a",),
    ("S3AFileSystem not found", 'No FileSystem for scheme "s3a"'),
    # S3 has no rename. Spark's usual committer would copy each file twice, and a task that was given up could still
    # copy its files beside those of the one that took its place. S3A's own completes uploads: of each task, those of
    # one try.
    {
        "fs.s3a.committer.name": "magic",
        "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    },
    _s3_settings,
)
AZURE = Store(
    "azure",
    "Azure",
    tuple(AZURE_LONG_SCHEMES),
    ("AzureBlobFileSystem not found", 'No FileSystem for scheme "abfs'),
    {f"mapreduce.outputcommitter.factory.scheme.{scheme}": AZURE_COMMITTER for scheme in AZURE_LONG_SCHEMES},
    _azure_settings,
)
GOOGLE = Store(
    "google",
    "Google Cloud Storage",
    tuple(GOOGLE_SCHEMES),
    ("GoogleHadoopFileSystem not found", 'No FileSystem for scheme "gs"'),
    {"mapreduce.outputcommitter.factory.scheme.gs": GOOGLE_COMMITTER},
    _google_settings,
)
STORES = (S3, AZURE, GOOGLE)


def find_s3_keys(env: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of that environment as settings of Spark: for a Spark that has another environment.

    They are secret.
    """
    settings = {}
    for variable, name in S3_KEYS.items():
        if env.get(variable):
            settings[f"{S3_PREFIX}{name}"] = env[variable]
    return settings


def conf(base: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings of Spark, but for those that spark-defaults.conf has.

    Args:
        base: the folder of the jars.
    """
    settings: dict[str, str] = {}
    for store in STORES:
        settings |= store.make_settings(base, env)
    default_keys = jvm.default_keys(env)
    return {key: value for key, value in settings.items() if key not in default_keys}


def find_store(place: str) -> Store | None:
    """Return the store that a path or URI is on; None: another storage."""
    scheme = urlsplit(spark_uri(place)).scheme.lower()
    for store in STORES:
        if scheme in store.schemes:
            return store
    return None


def committer_options(place: str) -> dict[str, str]:
    """Return the options of a write there, beside `PROTOCOL`; none: Spark's own way is right."""
    store = find_store(place)
    if store is None:
        return {}
    # The job's id, which the committers of Azure and Google ask for before Spark has told it.
    return {**store.committers, **PARQUET_COMMITTER, "spark.sql.sources.writeJobUUID": uuid.uuid4().hex}


def list_jars(base: Path) -> list[str]:
    """Return the jars that were fetched; one that several stores need, once."""
    jars_by_name: dict[str, str] = {}
    for store in STORES:
        for jar in sorted((base / store.folder).glob("*.jar")):
            jars_by_name[jar.name] = str(jar)
    return list(jars_by_name.values())


def make_notes(base: Path, places: Iterable[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """Return notes for people: whether Spark finds the jars of each store that a pipeline has a place on."""
    stores = dict.fromkeys(map(find_store, places))  # each once
    return [_note(store, base, env) for store in stores if store]


def _note(store: Store, base: Path, env: Mapping[str, str]) -> str:
    if _has_jars(base, store.folder):
        origin = f"{base / store.folder}"
    elif any(line.startswith("spark.jars") for line in jvm.defaults(env)):
        origin = "those in its spark-defaults.conf"
    else:
        origin = f"none, so only few records can be staged there: onceonly jars fetch {store.folder}"
    return f"Spark's jars for {store.display_name}: {origin}"


def explain_missing_jar(error: Exception, what: str) -> InvalidPipeline | None:
    """Return the error of a Spark that was asked for something on a store without its jars; None: it is another one."""
    text = str(error)
    if PROTOCOL[1].removeprefix("org.apache.spark.") in text:  # which each store needs
        return _missing_jars_error(what, "an object store", "s3, azure or google")
    for store in STORES:
        if any(words in text for words in store.missing_jar_errors):
            return _missing_jars_error(what, store.display_name, store.folder)
    return None


def _missing_jars_error(what: str, store: str, folder: str) -> InvalidPipeline:
    return InvalidPipeline(
        what,
        f"A table or folder of it is on {store}, and Spark lacks jars for it. Without them, only a few Kafka "
        "records can be staged, and only into Delta tables.",
        f"onceonly jars fetch {folder}; for your own Spark, see: {name_page('object-stores')}. Nothing was published.",
        code="store-jars-missing",
    )
