"""Which task runs on which GPUs when: planning, replanning, simulation and the independent checker."""
