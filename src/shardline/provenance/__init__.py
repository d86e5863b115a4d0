"""Where, when and with what a result was made: records, certificates, the crate."""
