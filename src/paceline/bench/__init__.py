"""Workloads, trials and simulations: how well it does, shown without trusting it."""
