"""The pipelines; the only room that imports apache_beam."""
