"""What runs in a Spark job; classic sessions and Spark Connect alike (nothing here touches the JVM)."""
