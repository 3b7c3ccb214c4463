"""All papers together: scale files, claims and verdicts, the page, the gallery, the plan."""
