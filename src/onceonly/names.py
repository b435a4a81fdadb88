"""The grammar of names: of pipelines and sinks, and of the transactions that are named after them."""

from __future__ import annotations

import re

from onceonly.errors import InvalidPipeline

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")  # pipelines and sinks: no '-', which separates the parts of an identity
_PART, _NUMBER = "[A-Za-z0-9_]+", "(0|[1-9][0-9]*)"
# State table, pipeline, sink, epoch, attempt, nonce: see `checkpoint.model.Transaction`.
TRANSACTION = re.compile(f"{_PART}-{NAME.pattern}-{NAME.pattern}-{_NUMBER}-{_NUMBER}-{_PART}")


def check_name(kind: str, name: str) -> None:
    """Raise InvalidPipeline unless a pipeline or sink (`kind`) can have that name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidPipeline(
            f"'{name}' cannot be the name of a {kind}.",
            "Names become part of folder names and transactional ids.",
            "Use lower-case letters, digits and '_', a letter first, at most 63 characters.",
            code="name-invalid",
        )
