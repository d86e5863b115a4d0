"""What the files hold that are sealed, or handed from one process to another: a type for each.

Whoever writes such a file encodes its record, and whoever reads it decodes it, so that one place says
what its fields are.
"""
