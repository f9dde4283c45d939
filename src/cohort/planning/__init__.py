"""Plan several task files before anything runs: estimate each, place all, draw the plan, simulate early exits."""
