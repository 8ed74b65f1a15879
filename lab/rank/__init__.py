"""What runs inside a rank beside the user's script.

Started by path, never imported as `lab.rank` there: the script may have a `lab` module of its own.
Knows only the standard library.
"""
