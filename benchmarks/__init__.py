"""What Onceonly costs, beside the alternatives: each benchmark alternates its sides in one run and compares medians."""
