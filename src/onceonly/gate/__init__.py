"""Examining staged rows: bounds by the figures at hand, suites by Great Expectations, imported for them alone."""
