"""For an Airflow that takes plugins from this folder because Onceonly is on its path and not installed.

An installed Onceonly is found by its entry point. This file then defines nothing: Airflow would report the second one.
"""

from importlib.metadata import entry_points

if "onceonly" not in entry_points(group="airflow.plugins").names:
    from onceonly.airflow.plugin import OnceonlyPlugin as OnceonlyPlugin
