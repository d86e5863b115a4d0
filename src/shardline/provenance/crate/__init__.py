"""Workflow Run RO-Crate with the provenance of a report, and its zip."""
