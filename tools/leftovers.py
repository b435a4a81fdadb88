"""Fail if the calling script has left a process behind that works in this checkout, by its folder or its command."""

import sys
from pathlib import Path

import psutil

ROOT = str(Path(__file__).resolve().parent.parent)


def is_inside(text: str) -> bool:
    return text == ROOT or f"{ROOT}/" in f"{text}/"


def works_here(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(map(is_inside, [process.cwd(), *process.cmdline()]))
    except psutil.Error:
        return False


def main() -> None:
    me = psutil.Process()
    script = me.parent() or me
    since = (process for process in psutil.process_iter() if process.create_time() > script.create_time())
    left = [process for process in since if process != me and works_here(process)]
    for process in left:
        print(f"left behind: {process.pid} {' '.join(process.cmdline())[:200]}", file=sys.stderr)
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
