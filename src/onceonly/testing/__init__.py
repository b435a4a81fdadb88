"""A source and a sink without Spark, Kafka or Delta, for tests of pipelines."""
