"""The run folder, on disk or gs://: what training writes and everything else reads."""
