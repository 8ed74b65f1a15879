"""What the ranks of a benchmark run. `lab.bench.suites` names the sections."""
