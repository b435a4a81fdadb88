"""Examining staged rows: bounds from recorded figures, suites by Great Expectations, which only suites import."""
