"""The provenance of a report as others read it: a Workflow Run RO-Crate, and its zip."""
