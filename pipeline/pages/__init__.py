"""Parts of HTML pages that are one file: style sheet, tables and pictures."""
