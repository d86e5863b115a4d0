"""Environments of the stages: what they hold, what they truly are where a job runs, and how one is entered."""
