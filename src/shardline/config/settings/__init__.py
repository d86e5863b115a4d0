"""Settings as types: a class for each table of the config, a field for each key.

A field's annotation lists what values it takes, its default what is taken where nothing is set, and
the text below it explains it. Validation, messages, defaults, `config/README.md` and the JSON
schema are made from these classes (`shardline.config.key_schema`).

A setting that is newer than the first release has `legacy_value` in its `Meta(extra=...)`: see
`shardline.config.resolved`.
"""
