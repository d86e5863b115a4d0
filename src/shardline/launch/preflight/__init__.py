"""The preflight check: ranks, devices and the network paths between them, before a training."""
