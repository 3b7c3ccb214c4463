"""Running a training script that somebody has, and what is seen of it from inside."""
