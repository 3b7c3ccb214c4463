"""Lower bounds on the privacy loss from scores."""
