"""Every feature in every mode: two tables, one sweep, and the page that it writes."""
