"""The verdict on a rank that gloo has aborted, since another one has sent it too much."""
