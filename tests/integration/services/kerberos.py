"""A KDC for tests, and a YARN that lets in who has a ticket of it. It needs MIT's krb5kdc, which runs as any user."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import requests
from integration.services import yarn

from onceonly.dev.services import machine
from onceonly.dev.services.service import Service
from onceonly.runtime import cluster
from onceonly.runtime.yarn import KERBEROS, _login

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = {name: shutil.which(name, path=PATH) for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")}
READY = all(PROGRAMS.values()) and find_spec(KERBEROS) is not None
MISSING = (
    "apt-get install krb5-kdc krb5-admin-server krb5-user, and for requests-kerberos, libkrb5-dev and gcc: "
    "pip install requests-kerberos"
)
REALM, HOST = "ONCEONLY.TEST", "localhost"
SERVICES = (f"rm/{HOST}", f"nm/{HOST}", f"HTTP/{HOST}")
USERS = ("etl", "other")


class Kdc(Service):
    """Its keytabs are beside it, a file for each principal."""

    name = "kdc"
    port_variable, default_port = "ONCEONLY_TESTS_KDC_PORT", 0

    def command(self, port: int) -> Sequence[str]:
        self._configure(port)
        if not (self.folder / "principal").exists():
            self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-this-test")
            for principal in (*SERVICES, *USERS):
                self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
                self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {self.keytab(principal)} {principal}")
        return [_program("krb5kdc"), "-n", "-r", REALM, "-P", str(self.folder / "kdc.pid")]

    def environment(self) -> Mapping[str, str]:
        """Of it, and of whoever has a ticket."""
        return {"KRB5_CONFIG": str(self.folder / "krb5.conf"), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}

    def is_ready(self, port: int) -> bool:
        return machine.is_open(port)

    def address(self, port: int) -> str:
        return f"{machine.LOCALHOST}:{port}"

    def keytab(self, principal: str) -> Path:
        return self.folder / f"{principal.replace('/', '-')}.keytab"

    def ticket(self, user: str) -> str:
        """For KRB5CCNAME."""
        cache = f"FILE:{self.folder / user}.ccache"
        self._run("kinit", "-c", cache, "-k", "-t", str(self.keytab(user)), user)
        return cache

    def _run(self, name: str, *arguments: str) -> None:
        env = {**self.environment(), "PATH": PATH}
        done = subprocess.run([_program(name), *arguments], env=env, capture_output=True, text=True)
        assert done.returncode == 0 and "while" not in done.stderr, f"{name}: {done.stdout}{done.stderr}"

    def _configure(self, port: int) -> None:
        (self.folder / "krb5.conf").write_text(f"""
[libdefaults]
  default_realm = {REALM}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {REALM} = {{
    kdc = {self.address(port)}
  }}
[domain_realm]
  {HOST} = {REALM}
[logging]
  kdc = STDERR
""")
        (self.folder / "kdc.conf").write_text(f"""
[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = {self.address(port)}
[realms]
  {REALM} = {{
    database_name = {self.folder}/principal
    key_stash_file = {self.folder}/stash
    acl_file = {self.folder}/kadm5.acl
    supported_enctypes = aes256-cts:normal
  }}
""")


class ResourceManager(yarn.ResourceManager):
    """Asks for a ticket, over RPC and over HTTP."""

    def __init__(self, kdc: Kdc) -> None:
        super().__init__(kdc.home, port=0)
        self.kdc = kdc

    def command(self, port: int) -> Sequence[str]:
        java, *more = super().command(port)
        return [java, option(self.kdc), *more]

    def settings(self, port: int) -> dict[str, str]:
        found = {**super().settings(port), "yarn.acl.enable": "true", "yarn.admin.acl": "rm,nm"}
        for part, own in (("resourcemanager", SERVICES[0]), ("nodemanager", SERVICES[1])):
            for name, end, principal in (("", "keytab", own), ("webapp.spnego-", "keytab-file", SERVICES[2])):
                found[f"yarn.{part}.{name}principal"] = f"{principal}@{REALM}"
                found[f"yarn.{part}.{name}{end}"] = str(self.kdc.keytab(principal))
        return found

    def ask(self, path: str) -> dict[str, Any]:
        """As who has the ticket that the environment names."""
        answer = requests.get(f"{self.web}/ws/v1/{path}", timeout=5, **_login())
        return cluster.parse_object(answer) or {}

    def core(self) -> dict[str, str]:
        secret = self.folder / "signature"
        secret.write_text("of-this-test")
        web = {
            "type": "kerberos",
            "kerberos.principal": f"{SERVICES[2]}@{REALM}",
            "kerberos.keytab": str(self.kdc.keytab(SERVICES[2])),
            "signature.secret.file": str(secret),
        }
        return {
            "hadoop.security.authentication": "kerberos",
            "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
            **{f"hadoop.http.authentication.{name}": value for name, value in web.items()},
        }

    def is_ready(self, port: int) -> bool:
        try:
            return requests.get(f"{self.address(port)}/ws/v1/cluster/info", timeout=5).status_code == 401
        except OSError:
            return False

    def address(self, port: int) -> str:
        return f"http://{HOST}:{port}"  # by the name that its principal has


class NodeManager(yarn.NodeManager):
    def __init__(self, manager: ResourceManager) -> None:
        super().__init__(manager)
        self.kdc = manager.kdc

    def command(self, port: int) -> Sequence[str]:
        java, *more = super().command(port)
        return [java, option(self.kdc), *more]

    def address(self, port: int) -> str:
        return f"http://{HOST}:{port}"


def option(kdc: Kdc) -> str:
    """Of a JVM that is to find it."""
    return f"-Djava.security.krb5.conf={kdc.folder / 'krb5.conf'}"


def _program(name: str) -> str:
    found = PROGRAMS[name]
    assert found
    return found
