"""Code for Spark jobs, in classic sessions and on Spark Connect. Nothing here accesses the JVM."""
