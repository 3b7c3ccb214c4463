"""Run a training script that somebody has, many times or once, and see what it does inside."""
