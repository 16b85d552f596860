"""A store put together: planned, written part by part, committed, added to."""
