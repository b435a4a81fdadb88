"""Who asks an object store: the variables of the environment that every client reads, and Airflow connections as them.

delta-rs, pyarrow, Hadoop and the stores' own clients find credentials by the same variables, and so do the processes
that this one starts. So a connection becomes variables of this process, and is written nowhere.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.storage.paths import AZURE_ACCOUNT, AZURE_SCHEMES, GOOGLE_SCHEMES, S3_SCHEMES

AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
FORCE_CHAIN = "AWS_FORCE_CREDENTIAL_LOAD"  # beside an endpoint, delta-rs looks for nothing but keys, unless told to
ALLOW_HTTP = "AWS_ALLOW_HTTP"
AZURE_KEY, AZURE_TOKEN = "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"
AZURE_PREFIXES = ("AZURE_STORAGE_", "AZURITE_")
GOOGLE_KEY_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")

T = TypeVar("T")
# Extra, login and password of a connection, by its id, the variable that names it, and its type.
FindConnection = Callable[[str, str, str], tuple[Mapping[str, Any], str | None, str | None]]


class StoreLogin(ABC):
    """One kind of object store, and the Airflow connections for it."""

    setting: str  # the variable that names the connection
    kind: str  # its type in Airflow
    credentials: tuple[str, ...]  # the variables that say who asks: those of a connection replace all of them
    exported: tuple[str, ...]  # the variables that a connection can set

    @abstractmethod
    def merge_settings(self, extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
        """Return the settings of a connection, which Airflow keeps in three fields."""

    @abstractmethod
    def to_variables(self, conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables for a connection.

        Raises:
            InvalidPipeline: it cannot be used. No value is shown.
        """

    def use_connection(
        self, conn_id: str, settings: Mapping[str, Any], env: MutableMapping[str, str] = os.environ
    ) -> None:
        """Let this process, and those that it starts, use the connection.

        Its credentials replace all that the environment names. Without any, the usual chain is used: environment,
        profile or key file, machine.

        Raises:
            InvalidPipeline: it cannot be used; nothing was changed.
        """
        self.use_variables(self.to_variables(conn_id, settings), env)

    def use_variables(self, variables: Mapping[str, str], env: MutableMapping[str, str] = os.environ) -> None:
        """Set these variables. Credentials among them replace all that the environment names."""
        if any(name in variables for name in self.credentials):
            for name in self.credentials:
                env.pop(name, None)
        env.update(variables)

    def export_variables(self, env: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return what a process elsewhere needs to use the connection as this one does, keys included."""
        return _select(env, self.exported)


class AwsLogin(StoreLogin):
    """S3, by connections of type `aws`."""

    KEY, SECRET, PROFILE = "aws_access_key_id", "aws_secret_access_key", "profile_name"
    VARIABLES = MappingProxyType(  # by the name of a setting
        {
            KEY: "AWS_ACCESS_KEY_ID",
            SECRET: "AWS_SECRET_ACCESS_KEY",
            "aws_session_token": "AWS_SESSION_TOKEN",
            PROFILE: "AWS_PROFILE",
            "region_name": "AWS_REGION",
            "endpoint_url": "AWS_ENDPOINT_URL",
        }
    )
    ROLES = ("role_arn", "assume_role_method", "assume_role_kwargs", "external_id")  # only Airflow's own client can

    setting, kind = "ONCEONLY_AWS_CONNECTION", "aws"
    credentials = (*AWS_KEYS, "AWS_SESSION_TOKEN", "AWS_PROFILE")
    exported = tuple(sorted({*VARIABLES.values(), ALLOW_HTTP, FORCE_CHAIN}))

    def merge_settings(self, extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
        """Return the settings of a connection; Airflow keeps the two keys as login and password, or in the extra."""
        if not login or not password:
            return extra
        return {**extra, self.KEY: login, self.SECRET: password}

    def to_variables(self, conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
        obstacle = self._find_obstacle(settings)
        if obstacle:
            raise InvalidPipeline(
                f"the Airflow connection '{conn_id}' cannot be used for S3.",
                obstacle,
                f"Give it both keys (login and password), or a profile, or neither ({name_page('object-stores')}). "
                "Nothing was written.",
                code="connection-unusable",
            )
        variables: dict[str, str] = {}
        for name, value in settings.items():
            if name in self.VARIABLES and value:
                variables[self.VARIABLES[name]] = str(value)
        endpoint = variables.get("AWS_ENDPOINT_URL", "")
        if endpoint.startswith("http://"):
            variables[ALLOW_HTTP] = "true"
        if endpoint and "AWS_ACCESS_KEY_ID" not in variables:
            variables[FORCE_CHAIN] = "true"
        return variables

    def _find_obstacle(self, settings: Mapping[str, Any]) -> str | None:
        """Return why a connection with these settings cannot be used; None: it can be."""
        roles = _select(settings, self.ROLES)
        if roles:
            return f"It names a role ({', '.join(roles)}), which only a profile or the machine itself can assume."
        if bool(settings.get(self.KEY)) != bool(settings.get(self.SECRET)):
            return f"It has only one of {self.KEY} and {self.SECRET}."
        if settings.get(self.KEY) and settings.get(self.PROFILE):
            return f"It has keys and a profile ({self.PROFILE}); give only one of them."
        return None


class AzureLogin(StoreLogin):
    """Azure Blob Storage, by connections of type `wasb`."""

    LOGIN, PASSWORD, SAS = "login", "password", "sas_token"
    AIRFLOW_ONLY = ("connection_string", "tenant_id", "shared_access_key", "managed_identity_client_id")

    setting, kind = "ONCEONLY_AZURE_CONNECTION", "wasb"
    credentials = (
        *(AZURE_KEY, AZURE_TOKEN, "AZURE_STORAGE_ACCESS_KEY"),
        *("AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_SAS_KEY"),
    )
    exported = (AZURE_ACCOUNT, AZURE_KEY, AZURE_TOKEN)

    def merge_settings(self, extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
        """Return the settings of a connection: the account is its login, and the key its password."""
        return {**extra, self.LOGIN: login, self.PASSWORD: password}

    def to_variables(self, conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
        obstacle = self._find_obstacle(settings)
        if obstacle:
            raise InvalidPipeline(
                f"the Airflow connection '{conn_id}' cannot be used for Azure.",
                obstacle,
                "Give it the account as login, and its key as password, or a sas_token, or neither "
                f"({name_page('object-stores')}). Nothing was written.",
                code="connection-unusable",
            )
        values = {
            AZURE_ACCOUNT: settings[self.LOGIN],
            AZURE_KEY: settings.get(self.PASSWORD),
            AZURE_TOKEN: settings.get(self.SAS),
        }
        return {name: str(value) for name, value in values.items() if value}

    def _find_obstacle(self, settings: Mapping[str, Any]) -> str | None:
        """Return why a connection with these settings cannot be used; None: it can be."""
        unsupported = _select(settings, self.AIRFLOW_ONLY)
        if unsupported:
            return f"It has {', '.join(unsupported)}, which only Airflow's own client can use."
        if not settings.get(self.LOGIN):
            return "It names no account."
        if settings.get(self.PASSWORD) and settings.get(self.SAS):
            return f"It has a key and a {self.SAS}; give only one of them."
        return None


class GoogleLogin(StoreLogin):
    """Google Cloud Storage, by connections of type `google_cloud_platform`: the path of a key file."""

    PATH = "key_path"
    AIRFLOW_ONLY = ("keyfile_dict", "key_secret_name", "credential_config_file", "impersonation_chain")

    setting, kind = "ONCEONLY_GOOGLE_CONNECTION", "google_cloud_platform"
    credentials = GOOGLE_KEY_FILES
    exported = GOOGLE_KEY_FILES[:1]  # elsewhere, the file has to be there as well

    def merge_settings(self, extra: Mapping[str, Any], login: str | None, password: str | None) -> Mapping[str, Any]:
        """Return the settings of a connection, all in its extra."""
        return extra

    def to_variables(self, conn_id: str, settings: Mapping[str, Any]) -> dict[str, str]:
        unsupported = _select(settings, self.AIRFLOW_ONLY)
        if unsupported:
            raise InvalidPipeline(
                f"the Airflow connection '{conn_id}' cannot be used for Google Cloud Storage.",
                f"It has {', '.join(unsupported)}, which only Airflow's own client can use.",
                f"Set its {self.PATH} to a key file, or use the machine's identity ({name_page('object-stores')}). "
                "Nothing was written.",
                code="connection-unusable",
            )
        path = settings.get(self.PATH)
        return {GOOGLE_KEY_FILES[0]: str(path)} if path else {}


AWS, AZURE, GOOGLE = AwsLogin(), AzureLogin(), GoogleLogin()
LOGINS: tuple[StoreLogin, ...] = (AWS, AZURE, GOOGLE)


def use_connections(conn_ids: Mapping[str, str], find: FindConnection) -> None:
    """Let this process reach each store by its connection, if there is one.

    Args:
        conn_ids: the connections, by the variable that names each.
        find: looks a connection up.
    Raises:
        InvalidPipeline: there is no such connection, or it cannot be used.
    """
    for login in LOGINS:
        conn_id = conn_ids.get(login.setting)
        if conn_id:
            login.use_connection(conn_id, login.merge_settings(*find(conn_id, login.setting, login.kind)))


def export_variables(conn_ids: Iterable[str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a process elsewhere needs to use connections as this one does, keys included.

    Args:
        conn_ids: the variables that name a connection.
    """
    variables: dict[str, str] = {}
    for login in LOGINS:
        if login.setting in conn_ids:
            variables |= login.export_variables(env)
    return variables


def executor_variables(uri: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what Python on a machine of Spark's executors needs to reach a place as this process does.

    For S3, it is both keys, as S3A hands them over; for Google, the path of a key file, which has to be there as well.
    """
    scheme = urlsplit(uri).scheme.lower()
    if scheme in S3_SCHEMES and all(map(env.get, AWS_KEYS)):
        return AWS.export_variables(env)
    if scheme in AZURE_SCHEMES:
        return {name: env[name] for name in sorted(env) if name.startswith(AZURE_PREFIXES)}
    if scheme in GOOGLE_SCHEMES:
        return _select(env, GOOGLE_KEY_FILES)
    return {}


def _select(env: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """Return these variables or settings, as far as they are set."""
    return {name: env[name] for name in names if env.get(name)}


def snapshot_variables(*prefixes: str) -> frozenset[tuple[str, str]]:
    """Return the variables of the environment that begin so: after a change of one, another client is made."""
    return frozenset(item for item in os.environ.items() if item[0].startswith(prefixes))


def find_google_key_file(env: Mapping[str, str]) -> Path | None:
    """Return the key file of a service account that the environment names; None: it names none."""
    for name in GOOGLE_KEY_FILES:
        path = env.get(name)
        if path:
            return Path(path)
    return None


def profile_arguments(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments by which a client of S3 that knows no profiles gets credentials; empty: it finds them.

    The order is that of delta-rs: keys, then a profile, if one is to count.

    Raises:
        InvalidPipeline: what reads profiles is not installed.
    """
    has_keys = all(env.get(name) for name in AWS_KEYS)
    if has_keys or (env.get("AWS_ENDPOINT_URL") and env.get(FORCE_CHAIN, "").lower() != "true"):
        return {}
    if not env.get("AWS_PROFILE") and not any(map(os.path.exists, _profile_files(env))):
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise InvalidPipeline(
            f"the AWS profile cannot be read: '{error.name}' is not installed.",
            "There is a profile in ~/.aws, or AWS_PROFILE names one.",
            "pip install 'onceonly[stores]', or give both keys in the environment. Nothing was written.",
            code="package-missing",
        ) from error
    return {"credential_provider": Boto3CredentialProvider()}


def _profile_files(env: Mapping[str, str]) -> list[str]:
    """Return the paths of the files that hold profiles."""
    return [
        os.path.expanduser(env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"),
        os.path.expanduser(env.get("AWS_CONFIG_FILE") or "~/.aws/config"),
    ]
