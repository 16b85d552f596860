"""What is refused before submitting: impossible names, buckets out of reach."""
