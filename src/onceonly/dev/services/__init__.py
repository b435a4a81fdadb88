"""A Kafka broker and a Spark Connect server on this machine, for users without a cluster.

    services = Services(Path(".onceonly"))
    services.up().bootstrap      # "127.0.0.1:19092", after about three seconds
    services.down()              # leaves no process

All files are below `<home>/services`. While they run, `<home>/services.json` has their addresses for other processes.
"""

from onceonly.dev.services.daemon import ServiceFailed
from onceonly.dev.services.embedded import Endpoints, Services, ServiceState, ServiceStatus

__all__ = ["Endpoints", "ServiceFailed", "ServiceState", "ServiceStatus", "Services"]
