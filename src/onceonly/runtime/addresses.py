"""The address of a cluster, which is what a trigger and the file of a driver keep of it. Nothing in it is secret."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from onceonly.runtime.cluster import Cluster
from onceonly.runtime.kubernetes import Kubernetes
from onceonly.runtime.standalone import Standalone
from onceonly.runtime.yarn import Yarn


def open_cluster(address: str) -> Cluster:
    """Return the cluster at an address. Nothing is asked yet.

    Args:
        address: `http://…` of a standalone master, `yarn+http://…,…` of ResourceManagers, `k8s+https://…/namespace`.
    """
    kind, plus, uri = address.partition("+")
    if plus and kind == "yarn":
        return Yarn(tuple(uri.split(",")))
    if plus and kind == "k8s":
        server, _, namespace = uri.partition("?")[0].rpartition("/")
        context = parse_qs(urlsplit(uri).query).get("context", [""])[0]
        return Kubernetes(server, namespace, context)
    return Standalone(address)
