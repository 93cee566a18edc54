"""From what a person has to evidence: one module for each kind of input."""
