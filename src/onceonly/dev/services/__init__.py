"""A Kafka broker and a Spark Connect server on this machine, for people who have no cluster.

    services = Services(Path(".onceonly"))
    services.up().bootstrap      # "127.0.0.1:19092", after about three seconds
    services.down()              # no process is left behind

Everything lies under `<home>/services`; `<home>/services.json` tells others the addresses while they are up.
"""

from onceonly.dev.services.daemon import ServiceFailed
from onceonly.dev.services.embedded import Endpoints, Services, ServiceState, ServiceStatus

__all__ = ["Endpoints", "ServiceFailed", "ServiceState", "ServiceStatus", "Services"]
