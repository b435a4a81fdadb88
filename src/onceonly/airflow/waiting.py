"""Where 0.1.0 had the trigger: a task that it deferred names this module. Gone with 0.3."""

from onceonly.airflow.triggers import DriverTrigger

__all__ = ["DriverTrigger"]
