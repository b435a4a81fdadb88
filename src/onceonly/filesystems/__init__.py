"""Local disks and HDFS, the names that Onceonly gives, and what is durable."""
