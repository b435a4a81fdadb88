"""Folders of files, each published exactly once: start reading at `sink`."""
