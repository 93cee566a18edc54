"""How a search for better settings is told: `tuning.Tuning` in; a terminal's text, a page, JSON out."""
