"""Methods: one file each, found by their names (repro.spec.methods); nothing is registered here."""
