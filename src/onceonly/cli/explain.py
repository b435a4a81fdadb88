"""onceonly explain: what the code of an error means."""

from __future__ import annotations

import dataclasses

import click

from onceonly import error_codes
from onceonly.cli.app import json_option, print_json
from onceonly.errors import InvalidPipeline


@click.command(short_help="What the code of an error means, and what to do.")
@click.argument("code")
@json_option
def explain(code: str, as_json: bool) -> None:
    """Print what an error code means, why it happens and what to do.

    The code stands at the end of the first line of a message, as in "… [target-went-back]". docs/errors.md has all.
    --json prints {"code", "area", "means", "why", "do"}.
    """
    code = code.strip("[]")
    explanation = error_codes.read_catalogue().get(code)
    if explanation is None:
        similar = error_codes.list_similar_codes(code)
        raise InvalidPipeline(
            f"there is no error code '{code}'.",
            f"Similar codes: {', '.join(similar)}." if similar else "No code resembles it.",
            "All codes are in docs/errors.md.",
            code="code-unknown",
        )
    if as_json:
        print_json(dataclasses.asdict(explanation))
        return
    for text in (explanation.means, explanation.why, explanation.do):
        click.echo(error_codes.without_links(text))
