"""The shipped models. Your own model can be any LightningModule, named by its import path."""

from shardline.core.one_lightning import keep

keep()  # before the modules of this package import Lightning: a program may import either of its packages
