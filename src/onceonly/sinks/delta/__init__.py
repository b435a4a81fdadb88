"""Delta tables, appended to exactly once: begin with `sink`."""
