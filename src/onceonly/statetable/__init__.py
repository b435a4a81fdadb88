"""The durable log of all decisions: one row per transition, each written by a compare-and-set."""
