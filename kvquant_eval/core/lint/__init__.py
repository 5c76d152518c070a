"""What is wrong, or wasteful, in a golden set: each check is a pure function of turns, one file a kind."""
