"""Where stages run: what is submitted to each kind of cluster."""
