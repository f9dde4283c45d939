"""Everything before the first step: read inputs, propose trials, choose sizes."""
