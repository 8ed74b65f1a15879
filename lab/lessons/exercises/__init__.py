"""One file for each lesson: `lab lesson explain` prints its docstring, the ranks run its code.

Any launcher will do: `torchrun --nproc-per-node 4 -m lab.lessons.exercises.no_sync`.
"""
