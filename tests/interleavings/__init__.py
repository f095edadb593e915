"""Every interleaving of the shipped algorithm, checked against its sequential specification."""
