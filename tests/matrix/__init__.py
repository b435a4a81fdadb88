"""The versions that people run: a cell for each, killed twice and compared with the truth. `make matrix`."""
