"""The script that `lab new` writes, as Python files that are checked and tested as they stand.

`train.py` is the script; what depends on the method and the model it imports from the other files
here. `lab.templates.compose` puts the chosen ones into one file that needs torch alone.
"""
