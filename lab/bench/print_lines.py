"""A rank that prints as fast as it can. Run by `flood`."""

import sys

LINE = "x" * 79 + "\n"

if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        sys.stdout.write(LINE)
