"""docker-compose.yml and what goes with it, by their schema and by what they promise; no engine is needed."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from onceonly.settings import VARIABLES
from onceonly.spark import jars

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def merged(*files: str) -> dict[str, Any]:
    """As Compose merges them: of a service, what the later file says of a setting counts, and lists are joined."""
    found: dict[str, Any] = {}
    for file in files:
        found = _joined(found, yaml.safe_load((ROOT / file).read_text()))
    return found


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: _joined(one[key], value) if key in one else value for key, value in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *(each for each in other if each not in one)]
    return other


COMPOSE = merged("docker-compose.yml")
STORED = merged("docker-compose.yml", "docker-compose.s3.yml")
SPREAD = merged("docker-compose.yml", "docker-compose.cluster.yml")
WHOLE = merged("docker-compose.yml", "docker-compose.cluster.yml", "docker-compose.s3.yml")
SERVICES: dict[str, dict[str, Any]] = WHOLE["services"]
BROKERS = ("kafka", "kafka-2", "kafka-3")
RUNS_ONCE = "airflow-init"
CONTAINERS = sorted([*ROOT.glob("docker-compose*.yml"), ROOT / "docker/helm-values.yaml", ROOT / "docker/Dockerfile"])


def test_it_is_valid_compose() -> None:
    schema = json.loads((ROOT / "tests/data/compose_spec.json").read_text())
    for compose in (COMPOSE, STORED, SPREAD, WHOLE):
        newer = {"name"} | {key for key in compose if key.startswith("x-")}
        known = {key: compose[key] for key in compose if key not in newer}
        jsonschema.validate(known, schema, cls=jsonschema.Draft201909Validator)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_healthy_or_runs_once(name: str) -> None:
    assert ("healthcheck" in SERVICES[name]) != (name == RUNS_ONCE)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_what_it_needs(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if needed == RUNS_ONCE else "service_healthy"
        assert needed in SERVICES and how["condition"] == expected


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_is_root_and_images_are_pinned(name: str) -> None:
    assert SERVICES[name]["user"].split(":")[0] not in ("root", "0")
    assert re.search(r":\d", SERVICES[name]["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_for_this_machine_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_come_from_files(name: str) -> None:
    """None stands in the environment, each file that is read is granted, and each one granted is declared."""
    service = SERVICES[name]
    granted = set(service.get("secrets", []))
    assert set(re.findall(r"/run/secrets/(\w+)", json.dumps(service))) <= granted <= set(STORED["secrets"])
    for key in service.get("environment", {}):
        assert not re.search(r"PASSWORD|SECRET|_KEY|SQL_ALCHEMY", key) or key.endswith(("_CMD", "_FILE"))


def test_airflow_has_all_its_parts_and_the_project() -> None:
    parts = {"api-server", "scheduler", "dag-processor", "triggerer"}
    assert {f"airflow-{part}" for part in parts} <= SERVICES.keys()
    environment = SERVICES["airflow-scheduler"]["environment"]
    for part in ("DAGS", "PLUGINS"):
        assert environment[f"AIRFLOW__CORE__{part}_FOLDER"].startswith("/opt/onceonly/")
    assert "recovery.py" in {file.name for file in (ROOT / "dags").glob("*.py")}


def test_links_lead_where_a_browser_on_this_machine_gets_to() -> None:
    """Tasks make them (the Checkpoint link), and reach the API by the service's name, which no browser resolves."""
    server = SERVICES["airflow-api-server"]
    published = {port.rsplit(":", 1)[0] for port in server["ports"]}
    for name in (name for name in SERVICES if name.startswith("airflow-")):
        environment = SERVICES[name]["environment"]
        link = urlsplit(environment["AIRFLOW__API__BASE_URL"])
        assert link.hostname == "localhost" and f"127.0.0.1:{link.port}" in published
        assert urlsplit(environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]).hostname == "airflow-api-server"


def test_the_state_table_is_made_by_the_step_that_runs_once() -> None:
    """By no other: the image says where it is, so a volume that is missing is an error, and not a new table."""
    assert "onceonly state init" in " ".join(SERVICES[RUNS_ONCE]["command"])
    image = (ROOT / "docker/Dockerfile").read_text()
    helm = yaml.safe_load((ROOT / "docker/helm-values.yaml").read_text())
    assert "ONCEONLY_STATE=" in image and "ONCEONLY_STATE" in {variable["name"] for variable in helm["env"]}


def test_a_killed_scheduler_leaves_no_lock() -> None:
    assert any("idle_in_transaction_session_timeout" in word for word in SERVICES["postgres"]["command"])


def test_helm_values_name_secrets_and_hold_none() -> None:
    values = yaml.safe_load((ROOT / "docker/helm-values.yaml").read_text())
    compose = SERVICES["airflow-scheduler"]["environment"]
    assert values["config"]["core"]["dags_folder"] == compose["AIRFLOW__CORE__DAGS_FOLDER"]
    assert values["airflowVersion"] == _locked("apache-airflow")
    assert values["securityContexts"]["pod"]["runAsNonRoot"] is True
    assert f"{values['securityContexts']['pod']['runAsUser']}:0" == SERVICES["airflow-scheduler"]["user"]
    for key in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName"):
        assert re.fullmatch(r"[a-z-]+", values[key])
    assert all(set(each) == {"envName", "secretName", "secretKey"} for each in values["secret"])
    assert not any(re.search(r"PASSWORD|SECRET|_KEY|CONN", each["name"]) for each in values["env"])


def test_helm_values_rely_on_nothing_that_our_image_lacks() -> None:
    """The chart's defaults are for Airflow's own image: FAB, a script that removes logs, /entrypoint in the probes."""
    values = yaml.safe_load((ROOT / "docker/helm-values.yaml").read_text())
    module, _, name = values["config"]["core"]["auth_manager"].rpartition(".")
    assert hasattr(importlib.import_module(module), name)
    assert values["createUserJob"]["enabled"] is False
    parts = ("scheduler", "triggerer", "dagProcessor")
    assert not any(values[part]["logGroomerSidecar"]["enabled"] for part in parts)
    image = (ROOT / "docker/Dockerfile").read_text()
    assert re.search(r"ln -s (\S+) /entrypoint\n", image)[1] in image.partition("ENTRYPOINT")[2]  # type: ignore[index]
    copied, names = (
        values["apiServer"]["args"][-1],
        [extravolumemount["mountPath"] for extravolumemount in values["apiServer"]["extraVolumeMounts"]],
    )
    assert f"{names[0]}/users.json {values['config']['core']['simple_auth_manager_passwords_file']}" in copied


def test_the_secrets_and_claims_that_helm_values_name_are_not_the_charts() -> None:
    """Those that it would make itself begin with the name of the release."""
    values = yaml.safe_load((ROOT / "docker/helm-values.yaml").read_text())
    named = [
        *(values[key] for key in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName")),
        values["data"]["metadataSecretName"],
        values["logs"]["persistence"]["existingClaim"],
    ]
    assert all(name.startswith("onceonly-") for name in named)


def test_what_helm_values_leave_to_choose_can_be_taken_as_it_stands() -> None:
    """The lines in comments: settings without a secret, secrets by name, a volume and where it is mounted."""
    lines = re.findall(r"^#   (- .*)$", (ROOT / "docker/helm-values.yaml").read_text(), re.MULTILINE)
    found = [document for line in lines for document in yaml.safe_load(line)]
    known = [{"name", "value"}, {"envName", "secretName", "secretKey"}, {"name", "secret"}, {"name", "configMap"}]
    assert len(found) == len(lines) > 10
    for each in found:
        assert set(each) in [*known, {"name", "mountPath", "readOnly"}]
        assert "value" not in each or not re.search(r"PASSWORD|SECRET|_KEY|CONN_", each["name"])
    stores = {each["value"].split("://")[0] for each in found if each.get("name") == "ONCEONLY_STATE"}
    assert stores == {"s3", "az", "gs"}


def test_the_service_accounts_that_helm_values_name_are_made() -> None:
    values = yaml.safe_load((ROOT / "docker/helm-values.yaml").read_text())
    accounts = [values[part]["serviceAccount"] for part in ("scheduler", "triggerer", "apiServer")]
    assert all(account["create"] for account in accounts)
    assert len({account["name"] for account in accounts}) == 3


@pytest.mark.parametrize("file", CONTAINERS, ids=lambda file: file.name)
def test_every_setting_is_one_that_exists(file: Path) -> None:
    """Those in comments, too."""
    assert set(re.findall(r"\bONCEONLY_[A-Z_]*[A-Z]\b", file.read_text())) <= {variable.name for variable in VARIABLES}


def _locked(package: str) -> str:
    found = re.search(rf"^{package}==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_every_secret_is_drawn() -> None:
    spec = importlib.util.spec_from_file_location("make_secrets", ROOT / "docker/make_secrets.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert {f"docker/secrets/{name}" for name in module.DRAW} == {
        secret["file"] for secret in STORED["secrets"].values()
    }
    assert all(draw() != draw() for draw in module.DRAW.values())


def test_the_broker_is_the_one_that_is_tested() -> None:
    tested = re.search(r'name="kafka_2.13" rev="([\d.]+)"', jars.IVY.read_text())
    assert tested
    assert {SERVICES[broker]["image"] for broker in BROKERS} == {f"apache/kafka:{tested[1]}"}


def test_three_brokers_are_one_cluster_of_three_copies() -> None:
    """Of two the acknowledgement counts, so that one may stop, and none keeps what the single broker kept."""
    told = {name: SERVICES[name]["environment"] for name in BROKERS}
    own = {"KAFKA_NODE_ID", "KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS"}
    shared = [{key: value for key, value in each.items() if key not in own} for each in told.values()]
    assert shared[0] == shared[1] == shared[2]
    voters = ",".join(f"{each['KAFKA_NODE_ID']}@{name}:9093" for name, each in told.items())
    assert shared[0]["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
    for key, copies in shared[0].items():
        assert copies == (
            3 if "REPLICATION_FACTOR" in key else 2 if key.endswith(("_ISR", "SYNC_REPLICAS")) else copies
        )
    assert shared[0]["KAFKA_DEFAULT_REPLICATION_FACTOR"] == 3 and shared[0]["KAFKA_MIN_INSYNC_REPLICAS"] == 2
    for name, each in told.items():
        outside = each["KAFKA_LISTENERS"].rsplit(":", 1)[1]
        assert each["KAFKA_ADVERTISED_LISTENERS"] == f"INSIDE://{name}:9092,OUTSIDE://localhost:{outside}"
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{outside}:{outside}"]
    volumes = [SPREAD["services"][name]["volumes"][-1] for name in BROKERS]
    assert len({*volumes, *COMPOSE["services"]["kafka"]["volumes"]}) == len(BROKERS) + 1


def test_three_workers_share_the_machine_and_all_of_airflow_knows_all_brokers() -> None:
    worker = SERVICES["spark-worker"]
    assert worker["deploy"]["replicas"] == 3 and "container_name" not in worker and "ports" not in worker
    assert {"SPARK_WORKER_CORES", "SPARK_WORKER_MEMORY"} <= worker["environment"].keys()
    for name in (name for name in SERVICES if name.startswith("airflow-")):
        assert SERVICES[name]["environment"]["ONCEONLY_KAFKA_BOOTSTRAP"] == ",".join(f"{b}:9092" for b in BROKERS)
    assert set(BROKERS) <= SERVICES["airflow-scheduler"]["depends_on"].keys()


def test_with_the_store_every_process_that_works_reaches_it() -> None:
    """The state table is there from the first step on, and whoever has the address has the key."""
    for name in ("spark-worker", *(name for name in SERVICES if name.startswith("airflow-"))):
        told = SERVICES[name]["environment"]
        assert told["AWS_ENDPOINT_URL"] == "http://s3:7070"
        assert told["AWS_SHARED_CREDENTIALS_FILE"] == "/run/secrets/aws_credentials"
        assert {told[f"ONCEONLY_{name}"] for name in ("STATE", "SPOOL", "DOCS")} == {
            f"s3://lake/onceonly/{name}" for name in ("state", "spool", "docs")
        }
        assert "aws_credentials" in SERVICES[name]["secrets"]
    assert "s3" in SERVICES[RUNS_ONCE]["depends_on"] and "postgres" in SERVICES[RUNS_ONCE]["depends_on"]


def test_the_store_is_the_one_that_is_tested() -> None:
    tested = re.search(r"versitygw@v([\d.]+)", (ROOT / ".ci/run").read_text())
    assert tested and SERVICES["s3"]["image"] == f"onceonly-s3:{tested[1]}"
    assert f"versitygw@v{tested[1]}" in (ROOT / "docker/s3.Dockerfile").read_text()
