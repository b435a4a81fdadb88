"""Sets of epochs as short texts: '1-9998, 10001'."""

from __future__ import annotations

from collections.abc import Iterable


def format_epochs(epochs: Iterable[int]) -> str:
    """Return the epochs as text, those that follow on each other as a span."""
    spans: list[list[int]] = []
    for epoch in sorted(set(epochs)):
        if spans and spans[-1][1] == epoch - 1:
            spans[-1][1] = epoch
        else:
            spans.append([epoch, epoch])
    texts = []
    for first, last in spans:
        texts.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(texts)


def parse_epochs(text: str) -> set[int]:
    """Return the epochs of a text from `format_epochs`."""
    epochs: set[int] = set()
    for span in filter(None, text.split(", ")):
        first, _, last = span.partition("-")
        epochs.update(range(int(first), int(last or first) + 1))
    return epochs
