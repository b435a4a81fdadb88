"""Carrying it out: live parts from plain definitions, Spark jobs, who owns what."""
