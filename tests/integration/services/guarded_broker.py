"""A real broker with an authorizer: its users may do what they are granted, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import ResourceType as Kind
from patience import PATIENCE

from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker

PASSWORD = "Sesame"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class GuardedBroker(KafkaBroker):
    """Beside the open port, where everyone is an administrator, one where users have what they are granted."""

    def __init__(self, home: Path, users: Iterable[str]) -> None:
        super().__init__(home, port=0)
        self.guarded, self.users = machine.free_port(), tuple(users)

    def properties(self, port: int) -> str:
        listener = f",GUARDED://127.0.0.1:{self.guarded}"
        text = re.sub(r"^((?:advertised\.)?listeners=.*)$", rf"\1{listener}", super().properties(port), flags=re.M)
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in self.users)
        return text + "\n".join(
            [
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
                "inter.broker.listener.name=PLAINTEXT",
                "listener.name.guarded.sasl.enabled.mechanisms=PLAIN",
                f"listener.name.guarded.plain.sasl.jaas.config={PLAIN} {users};",
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users=User:ANONYMOUS",
                "",
            ]
        )

    @property
    def open_address(self) -> str:
        running = self.daemon.running()
        assert running
        return self.address(running.port)

    @property
    def guarded_address(self) -> str:
        return f"127.0.0.1:{self.guarded}"

    def connection(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        """Return the extra of an Airflow connection of that user."""
        return {
            "bootstrap.servers": self.guarded_address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }

    def grant(self, *acls: AclBinding) -> None:
        admin = AdminClient({"bootstrap.servers": self.open_address})
        for done in admin.create_acls(list(acls)).values():
            done.result(PATIENCE)


@contextmanager
def guarded_broker(home: Path, users: Iterable[str]) -> Iterator[GuardedBroker]:
    """Runs for the length of the block."""
    broker = GuardedBroker(home, users)
    broker.launch()
    try:
        broker.wait()
        yield broker
    finally:
        broker.daemon.stop()


def on_topic(user: str, topic: str, *operations: AclOperation) -> list[AclBinding]:
    return [make_acl(Kind.TOPIC, topic, ResourcePatternType.LITERAL, user, operation) for operation in operations]


def on_ids(user: str, prefix: str, *operations: AclOperation) -> list[AclBinding]:
    kind, pattern = Kind.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED
    return [make_acl(kind, prefix, pattern, user, operation) for operation in operations]


def on_groups(user: str, prefix: str, *operations: AclOperation) -> list[AclBinding]:
    return [make_acl(Kind.GROUP, prefix, ResourcePatternType.PREFIXED, user, operation) for operation in operations]


def make_acl(kind: Kind, name: str, pattern: ResourcePatternType, user: str, operation: AclOperation) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
