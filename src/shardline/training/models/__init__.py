"""The shipped models. Your own model can be any LightningModule, named by its import path."""
