"""What is known of OGBench's data sets, environments and tasks."""
