"""How near the twin comes to real servers: calibrate on one part, predict another, compare."""
