"""JSON values as values of Spark's types, exactly or not at all. Needs neither Spark nor a registry."""
