"""`python -P -m lab.node`: the agent as a program."""

from lab.node.agent import main

if __name__ == "__main__":
    main()
