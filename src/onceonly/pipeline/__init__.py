"""What a user declares: plain data, validated on creation."""
