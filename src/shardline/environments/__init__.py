"""Environments of the stages: what they hold, what is installed where a job runs, and how ranks start in one."""
