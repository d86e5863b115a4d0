"""Guesses of a dataset's entry in the config, from its files or its class."""

from shardline.results.data_init.guess import guess_entry
from shardline.results.data_init.written import Entry, add_entry

__all__ = ["Entry", "add_entry", "guess_entry"]
