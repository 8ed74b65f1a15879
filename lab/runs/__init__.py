"""What a run is: a job on a topology, its controller, its directory and its verdict.

Nothing is imported here: what is known of a run's ranks is judged also on hosts that have no more
than Python's own library and torch.
"""
