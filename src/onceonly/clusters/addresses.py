"""A cluster by its address, which is what a trigger and the file of a driver keep of it. Nothing in it is secret."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from onceonly.clusters.interface import Cluster
from onceonly.clusters.kubernetes import Kubernetes
from onceonly.clusters.standalone import Standalone
from onceonly.clusters.yarn import Yarn


def at(address: str) -> Cluster:
    """The cluster: `http://…` a standalone master, `yarn+http://…,…` ResourceManagers, `k8s+https://…/namespace`."""
    kind, plus, rest = address.partition("+")
    if plus and kind == "yarn":
        return Yarn(tuple(rest.split(",")))
    if plus and kind == "k8s":
        place = urlsplit(rest)
        server, _, namespace = rest.partition("?")[0].rpartition("/")
        return Kubernetes(server, namespace, parse_qs(place.query).get("context", [""])[0])
    return Standalone(address)
