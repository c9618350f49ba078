"""Training: one LightningModule, its callbacks, and the process that supervises it."""
