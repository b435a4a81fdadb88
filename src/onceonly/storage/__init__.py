"""Local disks, HDFS and S3, the names that Onceonly gives, and what is durable."""
