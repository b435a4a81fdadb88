"""The command line as a process of its own that Ctrl-C ends, also where a shell has started the tests in background."""

import sys

CLI = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from onceonly.cli import main; main()",
)
