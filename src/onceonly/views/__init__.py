"""Checkpoints for people: questions to the state table, and how values are written."""
