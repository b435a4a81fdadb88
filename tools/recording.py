"""A picture of a command's real output, as docs/images/demo.svg: what it prints on stdin, an SVG at the named path.

COLUMNS=100 TTY_COMPATIBLE=1 TTY_INTERACTIVE=0 make demo EXIT=1 |
  python tools/recording.py docs/images/demo.svg "make demo"
"""

from __future__ import annotations

import inspect
import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

CURSOR = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[A-KST]|\r")
WEB_FONT = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)  # of another server
SECRET = re.compile(r"(?<=login admin / )\S+")  # of Airflow in a demo that has ended
FONT = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main(target: str, title: str) -> None:
    lines = [SECRET.sub("…", CURSOR.sub("", line)) for line in sys.stdin.read().splitlines()]
    texts = [Text.from_ansi(line) for line in lines]
    console = Console(record=True, width=max(text.cell_len for text in texts) + 1, file=io.StringIO())
    for text in texts:
        console.print(text, soft_wrap=True)
    form = WEB_FONT.sub("", inspect.signature(console.export_svg).parameters["code_format"].default)
    form = form.replace("font-family: Fira Code, monospace", f"font-family: {FONT}")
    Path(target).write_text(console.export_svg(title=title, code_format=form), encoding="utf-8")


main(*sys.argv[1:])
