"""Pages that explain themselves: their look, tables and pictures, in one HTML file."""
