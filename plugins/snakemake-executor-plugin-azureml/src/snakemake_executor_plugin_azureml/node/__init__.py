"""The part of the plugin that runs on Azure ML's nodes; it needs only Python's standard library."""
