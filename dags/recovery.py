"""Settles what ended runs left behind, every five minutes."""

from onceonly.airflow import recovery_dag

dag = recovery_dag()
