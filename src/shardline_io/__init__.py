"""What a training program of any framework needs of its run; the standard library and NumPy alone."""
