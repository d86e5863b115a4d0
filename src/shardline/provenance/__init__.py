"""Provenance of results: records, resume certificates, the provenance graph and the RO-Crate."""
