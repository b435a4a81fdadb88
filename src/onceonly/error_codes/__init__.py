"""The catalogue of error codes: what each means, why it happens and what to do.

One TOML file per area holds the texts. `onceonly explain` prints them, and docs/errors.md is made from them:

    python -m onceonly.error_codes > docs/errors.md

A package with sinks brings codes of its own, by an entry point of CODES_GROUP: its name is the area, its value the
module beside which AREA.toml is.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from onceonly import documentation
from onceonly.errors import OnceonlyError

CODES_GROUP = "onceonly.error_codes"
MAX_SUGGESTIONS = 3
UNCLASSIFIED = "staging-failed"
# What Java raises in the middle of a row has such a name. Python's own errors, which a transform raises, end in Error.
JAVA_EXCEPTION = re.compile(r"^(Py4JJavaError|\w*Exception): ", re.MULTILINE)
ORIGIN = re.compile(r"^It comes from .+$", re.MULTILINE)  # the user's own line, see `runtime.spark_errors`
NOT_RECORDED = "Its message may quote a row. It is in the output of the step, and is not recorded."
QUOTES_ROWS = "The message may quote a row; the state table then keeps its first line alone."
PAGE_HEAD = """# Errors

Every error has a code: a stable word, at the end of the first line of its message, as `"code"` in `--json`, in the
state table and on the pages in Airflow. Words of messages may change, codes do not. `onceonly explain CODE` prints what
stands here.

What an error means for the command that it ends is told by its class: [exit codes](operations.md#exit-codes).
"""
E = TypeVar("E", bound=OnceonlyError)


@dataclass(frozen=True)
class Explanation:
    """What is said of one error code.

    Args:
        code: the code, such as "target-went-back".
        area: the part of Onceonly in which it arises, such as "storage".
        means, why, do: what it means, why it happens, what to do; Markdown, with links relative to docs/.
        quotes_rows: the second line of its message may contain values of rows.
    """

    code: str
    area: str
    means: str
    why: str
    do: str
    quotes_rows: bool = False


@cache
def read_catalogue() -> dict[str, Explanation]:
    """Return the explanation of every code of ours, by code.

    Raises:
        ValueError: two areas explain the same code.
    """
    catalogue: dict[str, Explanation] = {}
    for file in sorted(files(__name__).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".toml"):
            continue
        for code, explanation in read_area(__name__, file.name.removesuffix(".toml")).items():
            if code in catalogue:
                raise ValueError(f"{code} is explained in {catalogue[code].area} and in {explanation.area}")
            catalogue[code] = explanation
    return catalogue


def read_area(module: str, area: str) -> dict[str, Explanation]:
    """Return the explanations in AREA.toml beside a module, by code."""
    text = (files(module) / f"{area}.toml").read_text(encoding="utf-8")
    return {code: Explanation(code, area, **texts) for code, texts in tomllib.loads(text).items()}


@cache
def read_installed() -> dict[str, Explanation]:
    """Return the explanations that other installed packages bring, by code. One of them that is broken brings none."""
    from importlib.metadata import entry_points

    installed: dict[str, Explanation] = {}
    for offer in entry_points(group=CODES_GROUP):
        try:
            installed |= read_area(offer.module, offer.name)
        except (ImportError, OSError, TypeError, ValueError):  # its errors are raised all the same
            continue
    return installed


def read_all() -> dict[str, Explanation]:
    """Return the explanation of every code, ours and those of installed packages, by code."""
    return {**read_installed(), **read_catalogue()}


def find_explanation(code: str) -> Explanation | None:
    """Return the explanation of a code, ours or of an installed package; None: it is not explained."""
    if not code:
        return None
    return read_catalogue().get(code) or read_installed().get(code)  # other packages are not asked without need


def without_rows(error: E) -> E:
    """Return the error as it may be recorded: without its second line, if that may quote a row.

    What the state table holds, it holds for as long as it exists: values of rows could not be erased there. The first
    line of a message never quotes a row.
    """
    explanation = find_explanation(error.code)
    is_of_java = error.code == UNCLASSIFIED and JAVA_EXCEPTION.search(error.why) is not None
    if not is_of_java and (explanation is None or not explanation.quotes_rows):
        return error
    origin = ORIGIN.search(error.why)
    why = f"{origin[0]} {NOT_RECORDED}" if origin else NOT_RECORDED
    return type(error)(error.what, why, error.todo, error.code)


def list_similar_codes(word: str) -> list[str]:
    """Return the codes that resemble a word or contain it, then those whose meaning has it; at most three."""
    catalogue = read_all()
    similar = difflib.get_close_matches(word, sorted(catalogue), n=MAX_SUGGESTIONS)
    containing = [code for code in sorted(catalogue) if word in code]
    about = [code for code in sorted(catalogue) if re.search(rf"\b{re.escape(word)}", catalogue[code].means, re.I)]
    return list(dict.fromkeys([*similar, *containing, *about]))[:MAX_SUGGESTIONS]


def without_links(text: str) -> str:
    """Return Markdown as a terminal shows it: a link becomes its text, and the command that shows the page."""
    return documentation.LINK.sub(lambda link: f"{link[2]} ({documentation.name_target(link[3])})", text)


def format_page() -> str:
    """Return docs/errors.md: one heading per code, so that each can be linked to, below one heading per area."""
    parts = [PAGE_HEAD]
    area = ""
    for explanation in sorted(read_catalogue().values(), key=lambda entry: (entry.area, entry.code)):
        if explanation.area != area:
            area = explanation.area
            parts.append(f"## {area.capitalize()}\n")
        about = f"{explanation.means} {explanation.why}"
        if explanation.quotes_rows:
            about += f" {QUOTES_ROWS}"
        parts.append(f"### `{explanation.code}`\n\n{about}\n\n**Do:** {explanation.do}\n")
    return "\n".join(parts)
