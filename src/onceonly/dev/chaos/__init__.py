"""Chaos: a pipeline on services of its own, faults drawn from a seed, and a check of what readers saw."""
