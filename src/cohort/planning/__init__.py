"""Before anything runs: check a task and its inputs; estimate tasks, place them, draw the plan, simulate exits."""
