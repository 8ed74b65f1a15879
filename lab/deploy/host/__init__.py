"""What runs on a host while something is deployed there: carried over, standard library only."""
