"""Parts of a paper: cells, works, scores, estimates, figures and evidence."""
