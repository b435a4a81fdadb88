"""The protocol. Read `coordinator` first, then `stage` and `publish`; docs/design.md says what each module answers."""
