"""Kafka topics, written to exactly once: start reading at `sink`."""
