"""The documentation site: pages in Markdown, and what generates the others."""
