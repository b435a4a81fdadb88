"""A checker of histories: producers send unique values, pipelines move them, readers note what they see and when.

Afterwards it finds values that were lost, doubled, aborted, reordered, staged only, or seen without the rest of their
batch. It names them as Jepsen's workload for Kafka does. `recorders` make histories of topics, Delta tables and
folders; one that is made otherwise is plain data. `python -m onceonly.testing.history FILE` checks a history in a file.
"""

from onceonly.testing.history.checker import ANOMALIES, Anomaly, find_anomalies
from onceonly.testing.history.model import Batch, Fate, History, Read, Record, Send, Target, Value

__all__ = [
    "ANOMALIES",
    "Anomaly",
    "Batch",
    "Fate",
    "History",
    "Read",
    "Record",
    "Send",
    "Target",
    "Value",
    "find_anomalies",
]
