"""Local disks and HDFS, names that are ours, and what is on disk for sure."""
