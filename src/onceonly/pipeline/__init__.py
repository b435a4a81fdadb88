"""What a user declares: plain data, checked as soon as it is made."""
