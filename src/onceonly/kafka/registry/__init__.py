"""Schema registries (Confluent's REST interface): which schema an id names, and how its text is used."""
