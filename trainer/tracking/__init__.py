"""Where the figures of a run go while it trains: files of the run, and services."""
