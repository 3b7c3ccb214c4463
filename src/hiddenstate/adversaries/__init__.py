"""Canaries, losses and initialisations that make the last iterate leak."""
