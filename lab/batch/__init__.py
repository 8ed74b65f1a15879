"""Batch systems: a topology as a job script, submitted, followed and cancelled."""
