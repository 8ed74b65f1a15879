"""torchrun as `lab.node.torchrun` starts it: what takes seconds, its imports, is done beforehand.

It says `ready` on stdout when it could begin, and begins with the arguments that come as a line of
JSON on stdin. So all nodes begin together: a rendezvous that may be complete with fewer nodes than
there are would else start without a slow one.
"""

import json
import os
import sys

READY = b"ready\n"


def main() -> None:
    """Import, wait, be torchrun."""
    ready = os.dup(1)
    os.dup2(2, 1)  # whatever is printed while torch is imported
    from torch.distributed import run

    os.write(ready, READY)
    os.close(ready)
    line = sys.stdin.readline()
    if not line:  # whoever started this does not want it any more
        return
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    run.main(json.loads(line))


if __name__ == "__main__":
    main()
