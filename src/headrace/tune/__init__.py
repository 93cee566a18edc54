"""Searches settings with the judge it is handed. Knows no server and no clock."""
