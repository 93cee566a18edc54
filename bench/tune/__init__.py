"""How near tuning comes to the best there is: `python -m bench.tune`."""
