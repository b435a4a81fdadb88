"""Delta tables, appended to exactly once: start reading at `sink`."""
