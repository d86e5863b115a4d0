"""Shipped models; a user's own is any LightningModule, named by import path."""
