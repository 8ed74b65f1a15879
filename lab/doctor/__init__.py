"""Will it work here? What nodes tell of themselves and of each other, judged: `lab doctor`.

`lab.node.doctor` looks and measures on the nodes; `examine` leads it; `checks` judge what it found.
"""
