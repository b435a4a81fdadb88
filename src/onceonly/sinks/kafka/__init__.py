"""Kafka topics, written to exactly once: begin with `sink`."""
