"""What a process on a machine of Spark's executors needs to reach a place as this process does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from onceonly.storage import aws, azure_names, google_names

AZURE = ("AZURE_STORAGE_", "AZURITE_")


def environment(uri: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the keys by the names of their variables.

    Of Google, it is the path of a key file, which has to be there as well.
    """
    scheme = urlsplit(uri).scheme.lower()
    if scheme in ("s3", "s3a"):
        return aws.for_executors(env)
    if scheme in azure_names.SCHEMES:
        return {name: env[name] for name in sorted(env) if name.startswith(AZURE)}
    if scheme in google_names.SCHEMES:
        return {name: env[name] for name in google_names.FILES if env.get(name)}
    return {}
