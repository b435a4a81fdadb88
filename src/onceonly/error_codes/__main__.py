"""Prints docs/errors.md."""

from onceonly.error_codes import format_page

print(format_page(), end="")
