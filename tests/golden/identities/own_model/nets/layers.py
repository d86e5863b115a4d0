def scale(x, width):
    return x / width
