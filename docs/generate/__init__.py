"""What the site takes from elsewhere: parsers, dataclasses, tables and equations."""
