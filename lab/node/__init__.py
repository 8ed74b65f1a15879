"""What runs once on each node for one run: the agent, which starts the node's ranks.

Standard library only: this package travels to nodes that have no lab installed.
"""
