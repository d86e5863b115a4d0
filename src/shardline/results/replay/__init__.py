"""Evaluating a sealed model once more, and holding every recorded number against what comes out."""
