"""`python -m onceonly.testing.chaos`: break everything around a pipeline for some minutes, and check what came of it.

Needs `pip install 'onceonly[spark,kafka,services]'`, Java and `onceonly jars fetch spark broker`; with the extra
`airflow`, Airflow is a second scheduler.
"""

from __future__ import annotations

from importlib import import_module


def main() -> None:
    """Run it. The parts that it starts belong to packages above this one, so they are imported by name, and late."""
    import_module("onceonly.dev.chaos.run").main()


if __name__ == "__main__":
    main()
