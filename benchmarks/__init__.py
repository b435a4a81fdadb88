"""Ratios, measured in one run: each benchmark alternates its two sides and compares medians."""
