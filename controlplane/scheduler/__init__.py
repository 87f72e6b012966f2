"""Which Pod a Run is bound to: `planner` decides from facts alone, `scheduler` feeds it and passes its decisions on."""
