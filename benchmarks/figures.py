"""Numbers as people read them."""

from __future__ import annotations


def plain(value: float) -> str:
    """Three significant digits, never an exponent above 0.001: 12,345 · 28.7 · 0.81 · 0.004."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 0.1 else 4}f}"


def short(value: float) -> str:
    """For an axis: 5 · 20k · 1M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
