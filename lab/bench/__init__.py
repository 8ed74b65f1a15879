"""Measurements, each side by side with the alternative; `lab bench` prints them."""
