"""The report: curves, tables beside the paper's, one page that needs no network."""
