"""Valid names of pipelines and sinks."""

from __future__ import annotations

import re

from onceonly.errors import InvalidPipeline

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")  # pipelines and sinks: no '-', which separates the parts of an identity


def check_name(kind: str, name: str) -> None:
    """Raise InvalidPipeline unless a pipeline or sink (`kind`) can have that name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidPipeline(
            f"'{name}' cannot be the name of a {kind}.",
            "Names become part of folder names and transactional ids.",
            "Use lower-case letters, digits and '_', a letter first, at most 63 characters.",
        )
