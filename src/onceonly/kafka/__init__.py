"""What Kafka itself is asked and told, for sinks and sources alike."""
