"""Folders of files, each published exactly once: begin with `sink`."""
