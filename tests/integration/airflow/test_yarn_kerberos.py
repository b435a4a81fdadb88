"""A stage whose driver runs on a YARN that lets in only who has a ticket: with the keytab that the connection holds."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from codes import raises
from integration.airflow.test_yarn import application
from integration.projects.drivers import NAME, World, fired, make_world, trigger
from integration.services import kerberos
from integration.services.yarn import Yarn
from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until
from onceonly.errors import NotCommitted
from onceonly.runtime.cluster import GONE

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.skipif(not kerberos.READY, reason=kerberos.MISSING),
]
OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kerberos.Kdc]:
    made = kerberos.Kdc(tmp_path_factory.mktemp("kerberos"), port=0)
    try:
        made.launch()
        made.wait()
        yield made
    finally:
        made.daemon.stop()


@pytest.fixture(scope="module")
def yarn(kdc: kerberos.Kdc) -> Iterator[Yarn]:
    manager = kerberos.ResourceManager(kdc)
    found = Yarn(manager, kerberos.NodeManager(manager))
    with pytest.MonkeyPatch.context() as env:
        for name, value in {**kdc.environment(), "KRB5CCNAME": kdc.ticket("etl")}.items():
            env.setenv(name, value)
        try:
            found.up()
            yield found
        finally:
            found.down()


@pytest.fixture
def world(
    tmp_path: Path,
    broker: str,
    yarn: Yarn,
    kdc: kerberos.Kdc,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> World:
    """As Airflow's workers: spark-submit finds the KDC, and no ticket but what the keytab brings."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", kerberos.option(kdc))
    keytab = base64.encodebytes(kdc.keytab("etl").read_bytes()).decode()
    login = {"principal": f"etl@{kerberos.REALM}", "keytab": keytab}
    spark = yarn.connection(conf=dict.fromkeys(OPTIONS, kerberos.option(kdc)), **login)
    return make_world(tmp_path, broker, spark, {"kafka_there": {"bootstrap.servers": broker}}, monkeypatch, request)


def test_a_stage_by_the_keytab_of_the_connection(world: World, yarn: Yarn, kdc: kerberos.Kdc) -> None:
    world.plan("slow")
    submitted = world.submit()
    assert application(yarn, submitted)["user"] == "etl"
    world.until_at_work()
    assert world.submit() == submitted, "found by its tag"
    keytab = base64.b64encode(kdc.keytab("etl").read_bytes()).decode()[:60]
    assert [line for line in arguments() if keytab in line] == []
    world.go_on()
    assert fired(trigger(submitted))["state"] in ("FINISHED", "at its end")
    world.require_staged(submitted, "FINISHED")
    world.through.commit(NAME, 1)
    assert world.project.published() == Counter(range(8))


def arguments() -> list[str]:
    """Of every process."""
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]


def test_who_has_a_ticket_and_a_right_may_end_it(
    world: World, yarn: Yarn, kdc: kerberos.Kdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.plan("slow")
    submitted = world.submit()
    world.until_at_work()
    with monkeypatch.context() as env:
        env.setenv("KRB5CCNAME", f"FILE:{os.devnull}")
        for ask in (submitted.look, submitted.end):
            with raises(NotCommitted, "cluster-login-failed"):
                ask()
        env.setenv("KRB5CCNAME", kdc.ticket("other"))
        assert submitted.look().is_at_work
        with raises(NotCommitted, "cluster-refused", match=f"(?s){submitted.driver}.*other"):
            submitted.end()
    submitted.end()
    assert fired(trigger(submitted))["state"] == "KILLED"
    wait_until(lambda: not world.processes(), "the driver's processes are gone", PATIENCE)
    assert submitted.cluster.look("application_1_0001") == GONE
    submitted.cluster.end("application_1_0001")
