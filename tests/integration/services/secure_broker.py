"""A real broker that lets nobody in without credentials: SASL_SSL, SSL with client certificates, OAUTHBEARER."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker

SECRET = "Sesame"  # part of each of them: to be found nowhere
USER, PASSWORD = "flights", f'{SECRET} \\ "2013"; #no{{secret}}'  # whatever a JAAS entry could stumble over
CLIENT, CLIENT_SECRET = "onceonly client", f"{SECRET}+&%2013"
KEY_PASSWORD = f"{SECRET}-2013"
JAAS = "org.apache.kafka.common.security"


@dataclass
class Authority:
    """A certificate authority, and what it has signed, made with openssl."""

    folder: Path
    ca: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.ca = self.folder / "ca.pem"
        _openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority", self.folder, "ca.key", "ca.pem")

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its PKCS#8 key."""
        key, request, certificate = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        _openssl(f"req -newkey rsa:2048 -nodes -subj /CN={name}", self.folder, key.name, request.name)
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        sign = f"openssl x509 -req -in {request} -CA {self.ca} -CAkey {self.folder}/ca.key -CAcreateserial -days 2"
        _run(*sign.split(), "-extfile", str(self.folder / "names"), "-out", str(certificate))
        return certificate, key

    def lock(self, key: Path) -> Path:
        """The same key, encrypted."""
        locked = key.with_suffix(".locked")
        to_pkcs8 = f"openssl pkcs8 -topk8 -in {key} -out {locked} -passout pass:{KEY_PASSWORD}"
        _run(*to_pkcs8.split())
        return locked


class SecureBroker(KafkaBroker):
    """Beside the port that its starter asks: `sasl`, `tls` (asks for client certificates) and `oauth`."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, port=0)
        self.sasl, self.tls, self.oauth = (machine.free_port() for _ in range(3))
        self.authority = Authority(home / "certificates")
        self.tokens = Tokens(home / "tokens")
        self.format_options = [
            part
            for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for part in ("--add-scram", f"{kind}=[name={USER},password={PASSWORD}]")
        ]
        jwks = self.tokens.jwks
        allowed = (f"urls={jwks.as_uri()}", f"files={jwks}")
        self.java_options = ["-Xmx384m", *(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{a}" for a in allowed)]

    def properties(self, port: int) -> str:
        certificate, key = self.authority.issue("broker")
        both = self.authority.folder / "broker.both"
        both.write_text(key.read_text() + certificate.read_text())
        more = "".join(
            f",{name}://127.0.0.1:{number}"
            for name, number in (("SASL_SSL", self.sasl), ("SSL", self.tls), ("OAUTH", self.oauth))
        )
        text = re.sub(r"^((?:advertised\.)?listeners=.*)$", rf"\1{more}", super().properties(port), flags=re.M)
        return text + _escaped(
            {
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
                "SASL_SSL:SASL_SSL,OAUTH:SASL_SSL",
                "inter.broker.listener.name": "PLAINTEXT",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(both),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.ca),
                "listener.name.ssl.ssl.client.auth": "required",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{JAAS}.plain.PlainLoginModule required "
                f"user_{USER}={json.dumps(PASSWORD)};",
                "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
                "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{JAAS}.oauthbearer.OAuthBearerLoginModule "
                "required;",
                "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": f"{JAAS}.oauthbearer."
                "OAuthBearerValidatorCallbackHandler",
                "listener.name.oauth.sasl.oauthbearer.jwks.endpoint.url": self.tokens.jwks.as_uri(),
            }
        )


class Tokens:
    """An OAuth 2 token endpoint for client credentials; signs with RS256."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._key, self.jwks = folder / "signing.key", folder / "jwks.json"
        self.asked = 0
        _run("openssl", "genrsa", "-out", str(self._key), "2048")
        modulus = _run("openssl", "rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip()
        number = bytes.fromhex(modulus.removeprefix("Modulus="))
        key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": _base64(number), "e": "AQAB"}
        self.jwks.write_text(json.dumps({"keys": [key]}))

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Until the block ends; the endpoint's URL."""
        handler = type("Handler", (_Endpoint,), {"tokens": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/token"
            finally:
                server.shutdown()
                thread.join()

    def token(self, scope: str) -> str:
        now = int(time.time())
        claims = {"sub": CLIENT, "iat": now, "exp": now + 300, "scope": scope}
        parts = [_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, claims)]
        signed = ".".join(parts)
        command = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        signature = subprocess.run(command, input=signed.encode(), capture_output=True, check=True).stdout
        return f"{signed}.{_base64(signature)}"


class _Endpoint(BaseHTTPRequestHandler):
    tokens: Tokens

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        sent = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        known = sent == f"{CLIENT}:{CLIENT_SECRET}"
        body: dict[str, Any] = {"error": "invalid_client"}
        if known:
            self.tokens.asked += 1
            token = self.tokens.token(form.get("scope", [""])[0])
            body = {"access_token": token, "token_type": "Bearer", "expires_in": 300}
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def secure_broker(home: Path) -> Iterator[SecureBroker]:
    """Runs for the length of the block."""
    broker = SecureBroker(home)
    broker.launch()
    try:
        broker.wait()
        yield broker
    finally:
        broker.daemon.stop()


def _escaped(properties: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _openssl(command: str, folder: Path, key: str, out: str) -> None:
    _run("openssl", *command.split(), "-keyout", str(folder / key), "-out", str(folder / out))


def _run(*command: str) -> bytes:
    return subprocess.run(command, check=True, capture_output=True).stdout
