"""How Spark is told of object stores: by the environment that delta-rs reads, and never of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.spark.test_jars import put

from onceonly.settings import Settings
from onceonly.spark import jars, stores
from onceonly.spark.conf import conf
from onceonly.storage.paths import spark_uri

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_SESSION_TOKEN": "hidden"}
PLACE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-west-1"}


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    put(tmp_path / "s3", *(jar.file for jar in jars.list_jars("s3")))
    return tmp_path


def test_a_server_of_one_s_own_is_asked_by_path(tmp_path: Path) -> None:
    assert stores.conf(tmp_path, PLACE) == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
    }
    by_host = stores.conf(tmp_path, PLACE | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
    assert by_host["spark.hadoop.fs.s3a.path.style.access"] == "false"


def test_without_an_environment_nothing_is_said(tmp_path: Path) -> None:
    assert stores.conf(tmp_path, {}) == {}


def test_no_key_is_a_setting(fetched: Path) -> None:
    said = stores.conf(fetched, PLACE | KEYS)
    assert not [value for value in said.values() if "hidden" in value or "AKIA" in value]
    assert "ProfileCredentialsProvider" in said["spark.hadoop.fs.s3a.aws.credentials.provider"]


def test_what_spark_s_own_file_says_stays(fetched: Path) -> None:
    (fetched / "spark-defaults.conf").write_text("spark.hadoop.fs.s3a.endpoint  https://s3.example.com\n")
    said = stores.conf(fetched, PLACE | {"SPARK_CONF_DIR": str(fetched)})
    assert "spark.hadoop.fs.s3a.endpoint" not in said
    assert said["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"


def test_who_has_not_fetched_the_jars_does_not_have_them_on_a_class_path(fetched: Path, tmp_path: Path) -> None:
    with_them = Settings.from_env({"ONCEONLY_JARS": str(fetched)})
    without = Settings.from_env({"ONCEONLY_JARS": str(tmp_path / "other")})
    assert len(conf(with_them)["spark.jars"].split(",")) == len(jars.list_jars("s3"))
    assert "spark.jars" not in conf(without)


def test_the_jars_are_of_the_hadoop_that_pyspark_brings() -> None:
    known = {jar.name: jar.revision for jar in jars.list_jars("s3")}
    assert list(jars.ivy_jar().parent.glob(f"hadoop-client-api-{known['hadoop-aws']}.jar"))
    of_the_sdk = {jar.revision for jar in jars.list_jars("s3") if jar.org == "software.amazon.awssdk"}
    assert len(of_the_sdk) == 1


def test_what_pyspark_brings_is_not_fetched_again() -> None:
    """Two revisions of one library on a class path exclude each other."""
    there = {file.stem.rpartition("-")[0] for file in jars.ivy_jar().parent.glob("*.jar")}
    assert not [jar.name for jar in jars.list_jars("s3") if jar.name in there]


@pytest.mark.parametrize("uri", ["s3://lake/x", "s3a://lake/x"])
def test_spark_has_its_own_name_for_s3(uri: str) -> None:
    assert spark_uri(uri) == "s3a://lake/x"
    assert spark_uri("/lake/s3://x") == "/lake/s3://x"


def test_who_checks_a_pipeline_is_told_of_the_jars_for_s3(fetched: Path, tmp_path: Path) -> None:
    places = ["lake/flights", "s3://lake/flights"]
    assert stores.make_notes(tmp_path / "other", ["lake/flights"], {}) == []
    assert "onceonly jars fetch s3" in stores.make_notes(tmp_path / "other", places, {})[0]
    assert stores.make_notes(fetched, places, {}) == [f"Spark's jars for S3: {fetched}/s3"]


@pytest.mark.parametrize(
    ("store", "said"), [(store, words) for store in stores.STORES for words in store.missing_jar_errors]
)
def test_a_stage_without_the_jars_says_which(store: Any, said: str) -> None:
    told = stores.explain_missing_jar(
        RuntimeError(f"java.lang.RuntimeException: {said}"), "flights epoch 1 could not be staged."
    )
    assert f"onceonly jars fetch {store.folder}" in str(told)
    assert stores.explain_missing_jar(RuntimeError("the transform fails"), "") is None


@pytest.mark.parametrize("store", stores.STORES, ids=lambda store: store.folder)
def test_the_jars_of_each_store_are_found_once_and_of_each_it_is_told(tmp_path: Path, store: Any) -> None:
    for each in stores.STORES:
        put(tmp_path / each.folder, *(jar.file for jar in jars.list_jars(each.folder)))
    names = [Path(jar).name for jar in stores.list_jars(tmp_path)]
    assert len(names) == len(set(names)) and {jar.file for jar in jars.list_jars(store.folder)} <= set(names)
    assert Settings.from_env({"ONCEONLY_JARS": str(tmp_path)}).spark_jars() == stores.list_jars(tmp_path)
    place = f"{store.schemes[0]}://lake@a.dfs.core.windows.net/x"
    assert stores.find_store(place) is store
    assert stores.make_notes(tmp_path, [place], {}) == [
        f"Spark's jars for {store.display_name}: {tmp_path / store.folder}"
    ]


def test_a_key_of_azure_is_looked_up_by_hadoop_itself(tmp_path: Path) -> None:
    put(tmp_path / "azure", *(jar.file for jar in jars.list_jars("azure")))
    env = {"AZURE_STORAGE_ACCOUNT_NAME": "ours", "AZURE_STORAGE_ACCOUNT_KEY": "hidden"}
    name = "spark.hadoop.fs.azure.account.key.ours.dfs.core.windows.net"
    assert stores.conf(tmp_path, env) == {name: "${env.AZURE_STORAGE_ACCOUNT_KEY}"}


def test_a_key_file_of_google_is_named(tmp_path: Path) -> None:
    put(tmp_path / "google", *(jar.file for jar in jars.list_jars("google")))
    said = stores.conf(tmp_path, {"GOOGLE_SERVICE_ACCOUNT": "/keys/lake.json"})
    assert said["spark.hadoop.fs.gs.auth.service.account.json.keyfile"] == "/keys/lake.json"
    assert stores.conf(tmp_path, {})["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"
