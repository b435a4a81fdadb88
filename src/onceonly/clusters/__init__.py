"""Where a Spark job runs, and how it gets there: from a child process, a Connect server, or a cluster's own driver."""
