"""From a store to batches on devices."""
