"""Execution: sinks and sources from definitions, Spark jobs, transforms, owners of checkpoints."""
