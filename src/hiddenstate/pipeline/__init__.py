"""What a paper is made of: cells, works, scores, estimates, figures and evidence."""
