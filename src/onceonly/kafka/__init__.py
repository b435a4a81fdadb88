"""Requests to Kafka, for sinks and sources alike."""
