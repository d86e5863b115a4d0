"""What runs on Azure ML's nodes; needs nothing but Python's standard library."""
