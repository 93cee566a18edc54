"""Searches settings with any judge it is handed: overrides in, a measurement out.

score       one measurement  ->  the few numbers a search compares
candidates  the baseline's bill  ->  what is worth trying, most promising first
verdict     repeated runs  ->  a gain with its uncertainty
search      judge + budget  ->  Outcome
"""
