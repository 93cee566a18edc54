"""Faults made on purpose on a live server, and what the doctor says of each."""
