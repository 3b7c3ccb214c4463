"""Commands: a module each, or a few that belong together, with ``add``; ``cli`` lists them."""
