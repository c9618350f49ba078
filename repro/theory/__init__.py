"""Checks of theory: what the papers prove or derive, evaluated on real networks; float64 throughout."""
