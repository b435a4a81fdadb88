"""Trials on a real Airflow: minutes long, and no part of the suite. `make trial`; results in docs/operations.md."""
