"""Earlier results that a user accepts in place of the present identity's, on the record.

The files are linked (or copied) under the present identity, and `accepted.json` beside them records
from which identity, by whom, when, why, and what differs.
"""
