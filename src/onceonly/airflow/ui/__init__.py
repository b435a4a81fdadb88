"""The pages that show checkpoints inside Airflow: plain HTML from the state table, and actions for the coordinator.

Reading is `onceonly.views.queries`, deciding is `onceonly.coordinator`; here is only who may see it, and how it looks.
"""
