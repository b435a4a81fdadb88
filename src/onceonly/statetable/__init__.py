"""The durable log: one row per transition, each a compare-and-set."""
